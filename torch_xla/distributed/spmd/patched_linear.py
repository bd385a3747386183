"""`nn.Linear` whose gradients, too, keep the dimensions of batch and sequence apart.

The gradient of a weight is else computed from matrices in which these are one dimension. How that
is split cannot be said where both are, so devices send what they could keep.
"""

from __future__ import annotations

from typing import Any

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
        ctx: Any, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        ctx.save_for_backward(input, weight)
        return F.linear(input, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        input, weight = ctx.saved_tensors
        wanted = (*ctx.needs_input_grad, False)[:3]
        return _einsum_linear_backward_operation(grad_output, input, weight, None, *wanted)


def _einsum_linear_backward_operation(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    needs_input_grad_input: bool,
    needs_input_grad_weight: bool,
    needs_input_grad_bias: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """The gradients of input, weight and bias; None for those that nobody needs."""
    dtype = grad_output.dtype  # that of autocast
    grad_input = grad_weight = grad_bias = None
    if needs_input_grad_input:
        grad_input = F.linear(grad_output, weight.to(dtype).conj().t())
    if needs_input_grad_weight:
        grad_weight = _sum_of_products(grad_output, input.to(dtype).conj())
    if needs_input_grad_bias:
        leading = tuple(range(grad_output.dim() - 1))
        grad_bias = grad_output.sum(leading) if leading else grad_output
    return grad_input, grad_weight, grad_bias


def _einsum_linear_forward_fake(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The result of `XLAPatchedLinear`, without values."""
    return input.new_empty((*input.shape[:-1], weight.shape[0]))


def _einsum_linear_backward_fake(
    grad_output: torch.Tensor,
    input: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    needs_input_grad_input: bool,
    needs_input_grad_weight: bool,
    needs_input_grad_bias: bool,
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """The results of `_einsum_linear_backward_operation`, without values."""
    outputs, features = weight.shape
    wanted = (
        (needs_input_grad_input, input.shape),
        (needs_input_grad_weight, (outputs, features)),
        (needs_input_grad_bias, (outputs,)),
    )
    made = [grad_output.new_empty(shape) if wants else None for wants, shape in wanted]
    return made[0], made[1], made[2]


def _sum_of_products(grad: torch.Tensor, input: torch.Tensor) -> torch.Tensor:
    """The product of (..., outputs) and (..., features), summed over the leading dimensions."""
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
