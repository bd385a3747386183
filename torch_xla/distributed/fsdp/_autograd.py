"""The functions of autograd between shards and full values, and between modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch.autograd.function import once_differentiable

_Value = TypeVar("_Value", torch.Tensor, torch.Tensor | None)
Reduce = Callable[[Sequence[torch.Tensor | None]], Sequence[torch.Tensor | None]]


class FullOfShards(torch.autograd.Function):
    """Full values as functions of their shards.

    `reduce` gives the gradients of shards for those of full values.
    """

    @staticmethod
    def forward(
        ctx: Any, values: list[torch.Tensor], reduce: Reduce, *shards: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.reduce = reduce
        return tuple(value.detach() for value in values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        return (None, None, *ctx.reduce(gradients))


class Barrier(torch.autograd.Function):
    """Values behind a barrier, and, if `backward`, their gradients too.

    `wait` is a list of further tensors: they are replaced by themselves behind the same barrier.
    """

    @staticmethod
    def forward(
        ctx: Any, wait: list[torch.Tensor], backward: bool, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.has_barrier = backward
        behind = torch.ops.torch_xla.optimization_barrier([*wait, *tensors])
        wait[:] = behind[: len(wait)]
        results = behind[len(wait) :]
        needs = ctx.needs_input_grad[2:]
        ctx.mark_non_differentiable(*(r for r, n in zip(results, needs, strict=True) if not n))
        return tuple(results)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[Any, ...]:
        return (None, None, *(behind_barrier(gradients) if ctx.has_barrier else gradients))


def behind_barrier(tensors: Sequence[_Value]) -> list[_Value]:
    """Equal tensors, computed after all of them. None stays."""
    given = [t for t in tensors if t is not None]
    results = iter(torch.ops.torch_xla.optimization_barrier(given) if given else [])
    return [t if t is None else next(results) for t in tensors]
