"""`module.to("xla")` changes the module's parameters in place, as `module.to("cuda")` does.

A CPU tensor cannot be turned into an XLA tensor by `param.data = ...`, so `nn.Module._apply` would
make new Parameters: an optimizer that was built before would go on updating the old ones, and two
modules that share a parameter would each get their own. `install` therefore wraps
`nn.Module._apply`, through which `to`, `cpu`, `to_empty` and the like go. Where a conversion leads
to or from xla, the Parameter object receives the implementation of the converted tensor (what
`torch.utils.swap_tensors` does) and stays the same
object: optimizers, ties, attributes, weak references and gradient hooks survive. Conversions
between other devices run as PyTorch wrote them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_xla import _XLAC


def install() -> None:
    """To be called once."""
    original = nn.Module._apply

    @functools.wraps(original)
    def _apply(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], *args, **kwargs):
        if not isinstance(fn, _InPlace):  # children get the wrapped function from their parent
            fn = _InPlace(fn)
        return original(self, fn, *args, **kwargs)

    nn.Module._apply = _apply


class _InPlace:
    """A conversion of tensors that changes Parameters in place when xla is on one side."""

    def __init__(self, fn: Callable[[torch.Tensor], torch.Tensor]):
        self._fn = fn

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fn, name)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        converted = self._fn(tensor)
        if (
            isinstance(tensor, nn.Parameter)
            and (tensor.device.type == "xla") != (converted.device.type == "xla")
            and not torch._has_compatible_shallow_copy_type(tensor, converted)
        ):
            self._replace(tensor, converted)
            return tensor
        if isinstance(tensor, nn.Parameter) and converted is not tensor:
            _split_alike(tensor, converted)
        return converted

    def _replace(self, param: nn.Parameter, converted: torch.Tensor) -> None:
        grad = param.grad
        if grad is not None:
            param.grad = None
            converted_grad = self._fn(grad).requires_grad_(grad.requires_grad)
            _take_implementation(grad, converted_grad)
        _take_implementation(param, converted.detach().requires_grad_(param.requires_grad))
        param.grad = grad


def _split_alike(tensor: torch.Tensor, converted: torch.Tensor) -> None:
    """In SPMD mode a parameter of another dtype is split among devices as it was before."""
    if tensor.device.type == "xla" and converted.device.type == "xla":
        sharding = _XLAC._get_xla_op_sharding(tensor)
        if sharding is not None:
            _XLAC._split_anew(converted, sharding)


def _take_implementation(tensor: torch.Tensor, source: torch.Tensor) -> None:
    if is_in_a_graph(tensor):
        # It would add to a gradient that nobody sees.
        torch.autograd.graph.get_gradient_edge(tensor).node.register_prehook(_refuse_backward)
    swap_implementations(tensor, source)


def is_in_a_graph(tensor: torch.Tensor) -> bool:
    """True if a graph of autograd that was recorded before leads to a leaf."""
    return tensor.requires_grad and tensor.is_leaf and tensor._use_count() > 1


def swap_implementations(tensor: torch.Tensor, source: torch.Tensor) -> None:
    """Each object is the other tensor from now on; the first one's hooks stay."""
    torch._C._swap_tensor_impl(tensor, source)
    # Hooks are kept with the implementation and in the Python object; the latter has stayed.
    if tensor._backward_hooks:
        tensor._backward_hooks = tensor._backward_hooks
    if tensor._post_accumulate_grad_hooks:
        tensor._post_accumulate_grad_hooks = tensor._post_accumulate_grad_hooks


def _refuse_backward(_grads: Any) -> None:
    raise RuntimeError(
        "backward: expected the parameters to be on the device they were on in forward, but the "
        "module was moved to or from xla in between. Move it before forward, or after backward."
    )
