"""FakeTensors on `xla`: `device="xla"` is the current device there too."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from torch_xla._src.dynamo.uncaptured import skipped


def install() -> None:
    """`torch.ones(2, device="xla")` in a captured function is beside its arguments on `xla:0`.

    PyTorch gives an index to the devices of a list that it does not have xla in, and refuses to
    compute with tensors on `xla` and on `xla:0`.
    """
    make = FakeTensor.__new__

    @skipped  # torch._dynamo makes fake tensors while a compiled function runs
    @functools.wraps(make)
    def with_index(cls: type, *args: Any, **kwargs: Any) -> Any:
        args = tuple(_indexed(a) for a in args)
        return make(cls, *args, **{name: _indexed(a) for name, a in kwargs.items()})

    FakeTensor.__new__ = staticmethod(with_index)


def _indexed(argument: Any) -> Any:
    if isinstance(argument, torch.device | str):
        device = torch.device(argument)
        if device.type == "xla" and device.index is None:
            index = torch.xla.current_device() if torch.xla.is_initialized() else 0
            return torch.device("xla", index)
    return argument
