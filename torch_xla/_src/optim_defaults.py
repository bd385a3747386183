"""Which implementation torch.optim takes for parameters on xla when the user names none.

torch.optim has three: a loop over parameters, lists (`foreach`) and one call for a whole step
(`fused`). A loop over 120 parameters records some 1500 nodes a step, lists record about ten, and
`fused` two: it also keeps the step counts on the device, so that nothing of a step is computed in
Python. Hence `fused` for the optimizers that have it, `foreach` for the others, as on other
accelerators. What a user asks for by `foreach=` or `fused=` stays as it is, and so does everything
on other devices.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

_DEVICE = "xla"
_FUSED_OPTIMIZERS = {"adam": "Adam", "sgd": "SGD", "adagrad": "Adagrad"}  # AdamW is an Adam


def install() -> None:
    """Adds xla to torch.optim's lists of devices; to be called once, when torch_xla is imported."""
    utils = importlib.import_module("torch.utils._foreach_utils")
    optimizer = importlib.import_module("torch.optim.optimizer")
    for module in (utils, optimizer, importlib.import_module("torch.optim.swa_utils")):
        for name in (
            "_get_foreach_kernels_supported_devices",
            "_get_fused_kernels_supported_devices",
        ):
            _extend(module, name)
    # Modules that took the function by name have their own reference to it.
    capturable = "_get_capturable_supported_devices"
    for name in ("adadelta", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop"):
        _extend(importlib.import_module(f"torch.optim.{name}"), capturable)
    _extend(optimizer, capturable)
    for name, class_name in _FUSED_OPTIMIZERS.items():
        optimizer_class = getattr(importlib.import_module(f"torch.optim.{name}"), class_name)
        optimizer_class._init_group = _preferring_fused(optimizer_class._init_group)


def _extend(module: Any, name: str) -> None:
    """Lets the function `module.name`, which returns a list of device types, include xla."""
    devices: Callable[..., list[str]] | None = getattr(module, name, None)
    if devices is None:
        return

    @functools.wraps(devices)
    def with_xla(*args: Any, **kwargs: Any) -> list[str]:
        found = devices(*args, **kwargs)
        return found if _DEVICE in found else [*found, _DEVICE]

    setattr(module, name, with_xla)


def _preferring_fused(init_group: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Optimizer._init_group, which runs at the start of each step for each group."""

    @functools.wraps(init_group)
    def wrapper(
        self: torch.optim.Optimizer, group: dict[str, Any], *lists: Any, **kwargs: Any
    ) -> Any:
        if group["fused"] is None and _suits_fused(group):
            _choose_fused(self, group)
        result = init_group(self, group, *lists, **kwargs)
        if "momentum" in group and group["fused"] and self.defaults["fused"] is None:
            # Fused SGD takes momentum buffers for all parameters or for none. Where a parameter
            # has its first gradient later than others, this one step goes by lists.
            buffers = lists[2]
            if len({buffer is None for buffer in buffers}) > 1:
                group["fused"] = None
        return result

    return wrapper


def _suits_fused(group: dict[str, Any]) -> bool:
    params = group["params"]
    if not params or params[0].device.type != _DEVICE or group["foreach"] is not None:
        return False
    if group.get("differentiable") or group.get("capturable"):
        return False
    if any(isinstance(beta, torch.Tensor) for beta in group.get("betas", ())):
        return False  # the fused operators take them as Python numbers
    return all(
        type(p) in (torch.Tensor, torch.nn.Parameter)
        and p.device.type == _DEVICE
        and p.is_floating_point()
        and not (p.grad is not None and p.grad.is_sparse)
        for p in params
    )


def _choose_fused(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> None:
    group["fused"] = True
    # The other implementations count steps on the host.
    for p in group["params"]:
        step = optimizer.state[p].get("step") if p in optimizer.state else None
        if isinstance(step, torch.Tensor) and step.device.type != _DEVICE:
            optimizer.state[p]["step"] = torch.full((), step.item(), device=p.device)
    if not getattr(optimizer, "_torch_xla_restores_fused", False):
        optimizer._torch_xla_restores_fused = True  # type: ignore[attr-defined]
        optimizer.register_state_dict_post_hook(_forget_choice)


def _forget_choice(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Saves the user's wish rather than our choice: the state may be loaded on another device."""
    if optimizer.defaults.get("fused") is None:
        for group in state_dict["param_groups"]:
            group["fused"] = None
