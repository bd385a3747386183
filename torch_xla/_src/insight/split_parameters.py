"""Which parameters are split over devices."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from torch_xla import _XLAC


@dataclasses.dataclass(frozen=True)
class SplitParameter:
    """A parameter of a module, and its sharding as GSPMD writes it."""

    name: str
    shape: tuple[int, ...]
    spec: str


def split_parameters() -> list[SplitParameter]:
    """The parameters of all modules of the process."""
    # isinstance would ask the things too, and some warn or raise then
    modules = _XLAC._xla_objects_of((torch.nn.Module,))
    inner = {id(child) for module in modules for child in module.children()}
    found: dict[int, SplitParameter] = {}
    for module in modules:
        if id(module) in inner:
            continue
        for name, parameter in module.named_parameters():
            tensor: Any = getattr(parameter, "global_tensor", parameter)
            if tensor.device.type != "xla":
                continue
            spec = _XLAC._get_xla_sharding_spec(tensor)
            if spec and spec != "{replicated}":
                full = f"{type(module).__name__}.{name}"
                found.setdefault(id(parameter), SplitParameter(full, tuple(parameter.shape), spec))
    return list(found.values())
