"""Statements of a program to the compiler about values within it: how they are split, and what is
computed before what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from torch_xla import _XLAC
from torch_xla.core import xla_model as xm


def constraint_of(t: torch.Tensor) -> str | None:
    """The constraint that says how a tensor is split; None where nothing says it."""
    sharding = _XLAC._get_xla_op_sharding(t)
    return None if sharding is None else sharding.constraint(t.dim())


class _Split(torch.autograd.Function):
    """A value and its gradient, each split by a constraint, or by None as the compiler chooses."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, here: str | None, back: str | None) -> torch.Tensor:
        ctx.back = back
        return _constrained(t, here)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        return _constrained(grad_output, ctx.back), None, None


def _constrained(t: torch.Tensor, text: str | None) -> torch.Tensor:
    return t.view_as(t) if text is None else torch.ops.torch_xla.sharding_constraint(t, text)


def split(t: torch.Tensor, here: str | None, back: str | None) -> torch.Tensor:
    """The value as a new tensor.

    Args:
        t: On `xla`.
        here, back: The constraints of the value and of its gradient, as `OpSharding.constraint`
            gives them.
    """
    return _Split.apply(t, here, back)


def apply_backward_optimization_barrier(m: nn.Module) -> None:
    """Puts a barrier behind the backward pass of a module, across which the compiler moves no work.

    The gradients of the module's inputs go on from there with those of its parameters, so what is
    computed again in an earlier layer does not begin, and take memory, before. Values stay.

    Args:
        m: The module; modules on other devices than `xla` compute as before.

    Example:
        >>> for layer in model.layers:
        ...     xs.apply_backward_optimization_barrier(layer)
    """
    m.register_full_backward_hook(_barrier)


def _barrier(
    module: nn.Module, grad_input: Sequence[torch.Tensor | None], grad_output: Any
) -> tuple[torch.Tensor | None, ...]:
    # An expanded tensor, as the gradient of a sum, cannot be written.
    inputs = [None if g is None else g.contiguous() for g in grad_input]
    grads = [p.grad for p in module.parameters()]
    behind = [g for g in (*grads, *inputs) if g is not None and g.device.type == "xla"]
    xm.optimization_barrier_(behind)
    return tuple(inputs)
