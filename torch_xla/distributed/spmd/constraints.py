"""What a program says to the compiler about values within it: how they are split, and what is
computed before what.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_xla import _XLAC
from torch_xla.core import xla_model as xm
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor

PyTreeA = TypeVar("PyTreeA")
PyTreeB = TypeVar("PyTreeB")


def constraint_of(t: torch.Tensor) -> str | None:
    """The constraint that says how a tensor is split; None where nothing says it."""
    sharding = _XLAC._get_xla_op_sharding(t)
    return None if sharding is None else sharding.constraint(t.dim())


class _Split(torch.autograd.Function):
    """A value and its gradient, each split by a constraint, or by None as the compiler chooses."""

    @staticmethod
    def forward(ctx, t: torch.Tensor, here: str | None, back: str | None):
        ctx.back = back
        return _constrained(t, here)

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor):
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


def shard_as(a: PyTreeA, b: PyTreeB) -> tuple[PyTreeA, PyTreeB]:
    """Splits the tensors of two nests alike.

    Of each pair, what has no sharding gets that of the other, in its value and in its gradient. If
    both have one, `b` gets that of `a`. If none has, both stay as they are, and the compiler
    chooses for each by itself: no constraint says "as that one" before one of them is split.

    Args:
        a, b: Nested lists, tuples and dicts alike, with xla tensors of the same sizes.

    Returns:
        Both nests, with new tensors where a value is split.

    Raises:
        ValueError: The nests differ.
        RuntimeError: The process is not in SPMD mode.

    Example:
        >>> activation, residual = xs.shard_as(activation, residual)
    """
    flat_a, nest_a = tree_flatten(a)
    flat_b, nest_b = tree_flatten(b)
    if nest_a != nest_b:
        raise ValueError(f"shard_as: expected equal nests, got {nest_a} and {nest_b}.")
    pairs = [_alike(x, y) for x, y in zip(flat_a, flat_b, strict=True)]
    new_a, new_b = (list(side) for side in zip(*pairs, strict=True)) if pairs else ([], [])
    return tree_unflatten(new_a, nest_a), tree_unflatten(new_b, nest_b)


def _alike(a: Any, b: Any) -> tuple[Any, Any]:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return a, b
    if a.shape != b.shape:
        raise ValueError(
            f"shard_as: expected tensors of the same sizes, got {list(a.shape)} and "
            f"{list(b.shape)}."
        )
    plain = [t.global_tensor if isinstance(t, XLAShardedTensor) else t for t in (a, b)]
    text = constraint_of(plain[0]) or constraint_of(plain[1])
    if text is None:
        return a, b
    return tuple(
        t if constraint_of(value) == text else split(value, text, text)
        for t, value in zip((a, b), plain, strict=True)
    )


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
    # What is expanded, as the gradient of a sum, cannot be written.
    inputs = [None if g is None else g.contiguous() for g in grad_input]
    grads = [p.grad for p in module.parameters()]
    behind = [g for g in (*grads, *inputs) if g is not None and g.device.type == "xla"]
    xm.optimization_barrier_(behind)
    return tuple(inputs)
