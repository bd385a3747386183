"""Reductions over replicas that have a gradient.

Each replica has a loss of its own, and gradients are those of its own loss, unless a function says
that it adds those of all replicas. In a job of one replica a reduction gives the value itself, and
so does its gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from torch_xla._src.device import collectives as _collectives
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
        reduced = _collectives.all_reduce(reduce_type, input, groups=groups)
        ctx.reduce_type, ctx.scale = reduce_type, scale
        if reduce_type != _collectives.REDUCE_SUM:
            ctx.save_for_backward(input, reduced)
        return reduced if scale == 1.0 else (reduced * scale).to(reduced.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        gradient = grad_output if ctx.scale == 1.0 else grad_output * ctx.scale
        if ctx.reduce_type != _collectives.REDUCE_SUM:
            input, reduced = ctx.saved_tensors
            if ctx.reduce_type == _collectives.REDUCE_MUL:
                others = torch.where(input != 0, reduced / input, torch.zeros_like(input))
                gradient = gradient * others
            elif ctx.reduce_type in (_collectives.REDUCE_MIN, _collectives.REDUCE_MAX):
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
        return _collectives.all_reduce(_collectives.REDUCE_SUM, x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:
        return _collectives.all_reduce(_collectives.REDUCE_SUM, grad_output)


class AllGather(torch.autograd.Function):
    """`xm.all_gather`. The gradient is that of this replica's own result, of its part of it."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int) -> torch.Tensor:
        ctx.dim, ctx.size = dim, input.size(dim)
        return _collectives.all_gather(input, dim=dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad_output.narrow(ctx.dim, _place.rank() * ctx.size, ctx.size).clone(), None


class _OfEachReplica(torch.autograd.Function):
    """A tensor of each replica, along a new first dimension. The gradient is the sum of the
    replicas' gradients.
    """

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor) -> torch.Tensor:
        return _collectives.all_gather(input.unsqueeze(0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:
        count = _place.world_size()
        sum_ = _collectives.REDUCE_SUM
        return _collectives.reduce_scatter(sum_, grad_output, 1.0, 0, count).squeeze(0)


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
    count, rank, own = _place.world_size(), _place.rank(), w.size(1)
    if x.size(0) != count * own or x.size(1) % split:
        raise ValueError(
            f"distributed_mm: expected an input of {count * own} rows, and columns that {split} "
            f"divides, got {tuple(x.shape)}."
        )
    results = []
    for part in torch.chunk(x, split, dim=1):
        rows = all_gather(part, dim=1).narrow(0, rank * own, own)
        total = all_reduce(_collectives.REDUCE_SUM, w @ rows)
        results.append(total.narrow(1, rank * part.size(1), part.size(1)))
    return torch.cat(results, dim=1) if split > 1 else results[0]


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
        if not self.training or _place.world_size() == 1:
            return super().forward(batch)
        self._check_input_dim(batch)
        others = [d for d in range(batch.dim()) if d != 1]
        count = batch.numel() // batch.size(1)
        var, mean = torch.var_mean(batch, dim=others, correction=0)
        counts = torch.full_like(mean, count)
        means, variances, counts = _OfEachReplica.apply(torch.stack([mean, var, counts])).unbind(1)
        total = counts.sum(0)
        mean = (means * counts).sum(0) / total
        var = ((variances + (means - mean).square()) * counts).sum(0) / total
        self._track(mean.detach(), (var * total / (total - 1)).detach())
        shape = [1, -1] + [1] * (batch.dim() - 2)
        scale = torch.rsqrt(var + self.eps) * self.weight
        return (batch - mean.view(shape)) * scale.view(shape) + self.bias.view(shape)

    def _track(self, mean: torch.Tensor, var: torch.Tensor) -> None:
        assert self.running_mean is not None and self.running_var is not None
        assert self.num_batches_tracked is not None and self.momentum is not None
        self.num_batches_tracked.add_(1)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
        self.running_var.lerp_(var.to(self.running_var.dtype), self.momentum)
