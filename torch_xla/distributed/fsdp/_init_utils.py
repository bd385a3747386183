"""Modules whose parameters have no data, on `meta` or of torchdistx, get it before they are cut."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import nn

from torch_xla.distributed.fsdp.xla_flatten_params_wrapper import FlatParameter

_TORCHDISTX_AVAIL = importlib.util.find_spec("torchdistx") is not None


def _materialize_module(
    module: nn.Module,
    param_init_fn: Callable[[nn.Module], None] | None,
    ignored_params: Collection[nn.Parameter],
    deferred_init_check_fn: Callable[[nn.Module], bool],
) -> bool:
    """Gives parameters without data theirs.

    Args:
        module: The module.
        param_init_fn: Does it for the module. Without it, what is on `meta` is made on the CPU, and
            `reset_parameters` of each module that has some of it fills it.
        ignored_params: Parameters that are not looked at.
        deferred_init_check_fn: Which modules torchdistx makes.

    Returns:
        Whether there was anything to do.

    Raises:
        TypeError: `param_init_fn` is not a function.
        ValueError: A module on `meta` has no `reset_parameters`.
    """
    parameters = list(_get_orig_params(module, ignored_params))
    is_meta = any(p.is_meta for p in parameters)
    is_deferred = not is_meta and _TORCHDISTX_AVAIL and _are_deferred(parameters)
    if not is_meta and not is_deferred:
        return False
    if param_init_fn is not None:
        if not callable(param_init_fn):
            raise TypeError(
                f"param_init_fn: expected a function of a module, got {type(param_init_fn)}."
            )
        param_init_fn(module)
    elif is_deferred:
        from torchdistx import deferred_init  # type: ignore[import-not-found]

        deferred_init.materialize_module(module, check_fn=deferred_init_check_fn)
    else:
        _reset(module)
    return True


def _are_deferred(parameters: list[nn.Parameter]) -> bool:
    from torchdistx import fake

    return any(fake.is_fake(p) for p in parameters)


def _reset(module: nn.Module) -> None:
    on_meta = [m for m in module.modules() if any(t.is_meta for t in _own_tensors(m))]
    for m in on_meta:
        if _reset_function(m) is None:
            raise ValueError(
                f"XlaFullyShardedDataParallel: expected a module on meta with a method "
                f"reset_parameters, got {type(m).__name__}. Give param_init_fn, which fills it."
            )
    shared: dict[torch.Tensor, torch.Tensor] = {}  # what two modules have, they have in the end

    def make(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_meta:
            return tensor
        if tensor not in shared:
            data = torch.empty_like(tensor, device="cpu")
            is_parameter = isinstance(tensor, nn.Parameter)
            shared[tensor] = nn.Parameter(data, tensor.requires_grad) if is_parameter else data
        return shared[tensor]

    for m in on_meta:
        for tensors in (m._parameters, m._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    setattr(m, name, make(tensor))
    with torch.no_grad():
        for m in on_meta:
            reset = _reset_function(m)
            assert reset is not None  # asked above
            reset()


def _reset_function(module: nn.Module) -> Callable[[], Any] | None:
    # Attention of PyTorch has it under the second name.
    for name in ("reset_parameters", "_reset_parameters"):
        if callable(getattr(module, name, None)):
            return getattr(module, name)
    return None


def _own_tensors(module: nn.Module) -> Iterator[torch.Tensor]:
    yield from module.parameters(recurse=False)
    yield from module.buffers(recurse=False)


def _get_orig_params(
    module: nn.Module, ignored_params: Collection[nn.Parameter]
) -> Iterator[nn.Parameter]:
    """The parameters of a module that are neither ignored nor flat ones of wrappers within."""
    ignored = {id(p) for p in ignored_params}
    for parameter in module.parameters():
        if id(parameter) not in ignored and not isinstance(parameter, FlatParameter):
            yield parameter
