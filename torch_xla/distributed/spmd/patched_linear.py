"""`nn.Linear` whose gradients, too, keep the dimensions of batch and sequence apart.

The gradient of a weight is else computed from matrices in which these are one dimension. How that
is split cannot be said where both are, so devices send what they could keep.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class XLAPatchedLinear(torch.autograd.Function):
    """`F.linear`; usage: `XLAPatchedLinear.apply(input, weight, bias)`.

    `input` has any leading dimensions before its features, `weight` the sizes (outputs, features).
    Of more than three dimensions of `input`, those before the last two are one in the gradient of
    the weight.
    """

    @staticmethod
    def forward(
        ctx, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        return F.linear(input, weight, bias)

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor):
        input, weight = ctx.saved_tensors
        wants_input, wants_weight, wants_bias = (*ctx.needs_input_grad, False)[:3]
        dtype = grad_output.dtype  # that of autocast
        grad_input = grad_weight = grad_bias = None
        if wants_input:
            grad_input = F.linear(grad_output, weight.to(dtype).conj().t())
        if wants_weight:
            grad_weight = _sum_of_products(grad_output, input.to(dtype).conj())
        if wants_bias:
            leading = tuple(range(grad_output.dim() - 1))
            grad_bias = grad_output.sum(leading) if leading else grad_output
        return grad_input, grad_weight, grad_bias


def _sum_of_products(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """Of (..., outputs) and (..., features) the sum over the leading dimensions."""
    if grad.dim() < 3:
        return torch.atleast_2d(grad).t() @ torch.atleast_2d(input)
    a, b = (t.flatten(0, -3) for t in (grad, input))
    return torch.addbmm(grad.new_zeros(()), a.mT, b, beta=0)


def xla_patched_nn_linear_forward(m: nn.Linear, input: torch.Tensor) -> torch.Tensor:
    """The forward pass of a linear layer by `XLAPatchedLinear`."""
    return XLAPatchedLinear.apply(input, m.weight, m.bias)


class EinsumLinear(nn.Linear):
    """`nn.Linear` by `XLAPatchedLinear`."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return xla_patched_nn_linear_forward(self, input)


def apply_xla_patch_to_nn_linear(module: nn.Module) -> nn.Module:
    """Makes each `nn.Linear` within a module, and the module itself if it is one, an
    `EinsumLinear`. Subclasses of `nn.Linear` have reasons of their own and stay.

    Values, gradients, parameters and their names stay.

    Returns:
        The same module.
    """
    for submodule in module.modules():
        if type(submodule) is nn.Linear:
            submodule.__class__ = EinsumLinear
    return module
