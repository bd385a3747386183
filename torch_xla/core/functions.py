"""Reductions over replicas that have a gradient.

In a job of one replica a reduction gives the value itself, and so does its gradient.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_xla._src.device import collectives as _collectives
from torch_xla._src.job import place as _place


class AllReduce(torch.autograd.Function):
    """`xm.all_reduce` of a tensor. A sum's gradient is the sum of the replicas' gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        reduce_type: str,
        scale: float,
        groups: list[list[int]] | None,
    ) -> torch.Tensor:
        if reduce_type != _collectives.REDUCE_SUM and _place.world_size() > 1:
            raise NotImplementedError(
                f"AllReduce: expected reduce_type 'sum', which has a gradient, got {reduce_type!r}."
            )
        ctx.scale, ctx.groups = scale, groups
        return _collectives.all_reduce(reduce_type, input, scale=scale, groups=groups)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        sum_ = _collectives.REDUCE_SUM
        gradient = _collectives.all_reduce(sum_, grad_output, scale=ctx.scale, groups=ctx.groups)
        return gradient, None, None, None


class AllReduceSumLayer(torch.autograd.Function):
    """The sum of a tensor over all replicas."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return _collectives.all_reduce(_collectives.REDUCE_SUM, x)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:
        return _collectives.all_reduce(_collectives.REDUCE_SUM, grad_output)


class AllGather(torch.autograd.Function):
    """`xm.all_gather`. The gradient is the sum of the replicas' gradients, of the own part."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim, ctx.size = dim, input.size(dim)
        return _collectives.all_gather(input, dim=dim)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = _collectives.all_reduce(_collectives.REDUCE_SUM, grad_output)
        start = _place.rank() * ctx.size
        return total.narrow(ctx.dim, start, ctx.size), None


def all_reduce(
    reduce_type: str,
    value: torch.Tensor,
    scale: float = 1.0,
    groups: list[list[int]] | None = None,
) -> torch.Tensor:
    """`xm.all_reduce` of a tensor, with a gradient."""
    return AllReduce.apply(value, reduce_type, scale, groups)


def all_gather(value: torch.Tensor, dim: int = 0) -> torch.Tensor:
    """`xm.all_gather` of a tensor, with a gradient."""
    return AllGather.apply(value, dim)


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """A batch norm, with the statistics of the batches of all replicas together.

    Args:
        num_features: The size of the second dimension.
        eps: Added to the variance.
        momentum: How much of the batch's statistics goes into the running ones.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1):
        super().__init__(num_features, eps, momentum)

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"SyncBatchNorm: expected an input of at least 2 dimensions, got {input.dim()}."
            )

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """Its shape is `[N, num_features, ...]`, as is the result's."""
        _collectives.of_one_replica("SyncBatchNorm")  # whose batches are not seen here yet
        return super().forward(batch)
