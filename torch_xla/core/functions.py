"""Reductions over replicas that have a gradient.

Each replica has a loss of its own, and gradients are those of its own loss, unless a function says
that it adds those of all replicas. In a job of one replica a reduction gives the value itself, and
so does its gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from torch_xla._src.collectives import exchanges as _exchanges
from torch_xla._src.collectives.sync_batch_norm import SyncBatchNorm  # noqa: F401
from torch_xla._src.job import place as _place


class AllReduce(torch.autograd.Function):
    """`xm.all_reduce` of a tensor. The gradient is that of this replica's own result."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        reduce_type: str,
        scale: float,
        groups: list[list[int]] | None,
    ) -> torch.Tensor:
        reduced = _exchanges.all_reduce(reduce_type, input, groups=groups)
        ctx.reduce_type, ctx.scale = reduce_type, scale
        if reduce_type != _exchanges.REDUCE_SUM:
            ctx.save_for_backward(input, reduced)
        return reduced if scale == 1.0 else (reduced * scale).to(reduced.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        gradient = grad_output if ctx.scale == 1.0 else grad_output * ctx.scale
        if ctx.reduce_type != _exchanges.REDUCE_SUM:
            input, reduced = ctx.saved_tensors
            if ctx.reduce_type == _exchanges.REDUCE_MUL:
                others = torch.where(input != 0, reduced / input, torch.zeros_like(input))
                gradient = gradient * others
            elif ctx.reduce_type in (_exchanges.REDUCE_MIN, _exchanges.REDUCE_MAX):
                gradient = torch.where(input == reduced, gradient, torch.zeros_like(gradient))
            else:
                raise RuntimeError(
                    "AllReduce: expected a reduce_type that has a gradient, sum, mul, min or max, "
                    f"got {ctx.reduce_type!r}."
                )
        return gradient, None, None, None


class AllReduceSumLayer(torch.autograd.Function):
    """The sum of a tensor over all replicas. The gradient is the sum of the replicas' gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _exchanges.all_reduce(_exchanges.REDUCE_SUM, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:
        return _exchanges.all_reduce(_exchanges.REDUCE_SUM, grad_output)


class AllGather(torch.autograd.Function):
    """`xm.all_gather`. The gradient is that of this replica's own result, of its part of it."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim, ctx.size = dim, input.size(dim)
        return _exchanges.all_gather(input, dim=dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        return _exchanges.own_part(grad_output, ctx.dim, ctx.size).clone(), None


def all_reduce(
    reduce_type: str,
    value: torch.Tensor,
    scale: float = 1.0,
    groups: list[list[int]] | None = None,
) -> torch.Tensor:
    """`xm.all_reduce` of a tensor, with the gradient of `AllReduce`."""
    return AllReduce.apply(value, reduce_type, scale, groups)


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """`xm.all_gather` of a tensor, with the gradient of `AllGather`."""
    return AllGather.apply(value, dim)


def distributed_mm(w: torch.Tensor, x: torch.Tensor, split: int = 1) -> torch.Tensor:
    """The product of a weight that is split among replicas and this replica's input.

    Args:
        w: This replica's part of the weight, `[N, K / world size]`.
        x: The input, `[K, M]`; each replica has its own.
        split: In how many parts the columns of `x` are worked on, where they take much memory: all
            replicas' inputs are gathered.

    Returns:
        `weight @ x`, `[N, M]`.
    """
    (_, count), own = _place.replica(), w.size(1)
    if x.size(0) != count * own or x.size(1) % split:
        raise ValueError(
            f"distributed_mm: expected an input of {count * own} rows, and columns that {split} "
            f"divides, got {tuple(x.shape)}."
        )
    results = []
    for part in torch.chunk(x, split, dim=1):
        rows = _exchanges.own_part(all_gather(part, dim=1), 0, own)
        total = all_reduce(_exchanges.REDUCE_SUM, w @ rows)
        results.append(_exchanges.own_part(total, 1, part.size(1)))
    return torch.cat(results, dim=1) if split > 1 else results[0]
