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
    lists, fused = "_get_foreach_kernels_supported_devices", "_get_fused_kernels_supported_devices"
    for module in (utils, importlib.import_module("torch.optim.swa_utils")):
        _extend(module, lists)
        _extend(module, fused)
    _extend(optimizer, fused)
    # Gradients of lists keep parameters that the same step writes; SGD asks for lists all the same.
    _extend(optimizer, lists, unless=torch.is_grad_enabled)
    # Modules that took the function by name have their own reference to it.
    capturable = "_get_capturable_supported_devices"
    for name in ("adadelta", "adam", "adamax", "asgd", "nadam", "radam", "rmsprop", "rprop"):
        _extend(importlib.import_module(f"torch.optim.{name}"), capturable)
    _extend(optimizer, capturable)
    for name, class_name in _FUSED_OPTIMIZERS.items():
        optimizer_class = getattr(importlib.import_module(f"torch.optim.{name}"), class_name)
        optimizer_class._init_group = _preferring_fused(optimizer_class._init_group)


def _extend(module: Any, name: str, unless: Callable[[], bool] = lambda: False) -> None:
    """Lets the function `module.name`, which returns a list of device types, include xla, but for
    calls at which `unless` holds."""
    devices: Callable[..., list[str]] | None = getattr(module, name, None)
    if devices is None:
        return

    @functools.wraps(devices)
    def with_xla(*args: Any, **kwargs: Any) -> list[str]:
        found = devices(*args, **kwargs)
        return found if _DEVICE in found or unless() else [*found, _DEVICE]

    setattr(module, name, with_xla)


def _preferring_fused(init_group: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps Optimizer._init_group, which runs at the start of each step for each group."""

    @functools.wraps(init_group)
    def wrapper(
        self: torch.optim.Optimizer, group: dict[str, Any], *lists: Any, **kwargs: Any
    ) -> Any:
        if group["fused"] is None and not _is_traced() and _suits_fused(group):
            _choose_fused(self, group)
        result = init_group(self, group, *lists, **kwargs)
        if group.get("momentum") and group["fused"]:
            params, buffers = lists[0], lists[2]
            if not group["dampening"]:
                # Momentum zero is what a first step starts from. Given as such, a first step is
                # like any other: it may be skipped, and parameters may begin at different steps.
                for i, (p, buffer) in enumerate(zip(params, buffers, strict=True)):
                    if buffer is None and p.device.type == _DEVICE:
                        buffers[i] = torch.zeros_like(p)
            elif self.defaults["fused"] is None and len({b is None for b in buffers}) > 1:
                # Fused SGD takes buffers for all parameters or for none; this step goes by lists.
                group["fused"] = None
        return result

    return wrapper


def _is_traced() -> bool:
    """True if torch._dynamo runs this while it traces a step. It has read the groups by then, and
    reads them again where it starts over: what one trace writes, the next one must not see."""
    return torch._guards.TracingContext.try_get() is not None


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
    # The other implementations count steps on the host, and what was made before the parameters
    # moved is where they were.
    for p in group["params"]:
        state = optimizer.state[p] if p in optimizer.state else {}
        for key, value in state.items():
            if not isinstance(value, torch.Tensor) or value.device.type == _DEVICE:
                continue
            state[key] = value.to(p.device)
    if not getattr(optimizer, "_torch_xla_restores_fused", False):
        optimizer._torch_xla_restores_fused = True
        optimizer.register_state_dict_post_hook(_forget_choice)


def skips_on_device(group: dict[str, Any]) -> bool:
    """True if a fused step of this group may be skipped by a tensor's value. With dampening the
    first step differs from those that follow, and only the host would know which was the first."""
    return not (group.get("momentum") and group.get("dampening"))


def prefer_skipping_on_device(optimizer: torch.optim.Optimizer) -> None:
    """Makes the choice of `fused` now, and tells GradScaler that it may rely on it: it then hands
    over its check for infinities as a tensor instead of reading it."""
    # The exact classes, since another `step` might not look at the tensor.
    classes = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)
    if type(optimizer) not in classes or optimizer.defaults["fused"] is not None:
        return
    able = all(
        skips_on_device(group) and (group["fused"] or _suits_fused(group))
        for group in optimizer.param_groups
    )
    for group in optimizer.param_groups if able else ():
        if not group["fused"]:
            _choose_fused(optimizer, group)
    optimizer._step_supports_amp_scaling = able


def _forget_choice(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> None:
    """Saves the user's wish rather than our choice: the state may be loaded on another device."""
    if optimizer.defaults.get("fused") is None:
        for group in state_dict["param_groups"]:
            group["fused"] = None
