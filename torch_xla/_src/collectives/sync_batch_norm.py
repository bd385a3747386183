"""A batch norm whose statistics are those of all replicas."""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable

from torch_xla._src.collectives import exchanges as _exchanges
from torch_xla._src.job import place as _place


class _ByReplica(torch.autograd.Function):
    """A tensor of each replica, along a new first dimension. The gradient is the sum of the
    replicas' gradients.
    """

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor) -> torch.Tensor:
        return _exchanges.all_gather(input.unsqueeze(0))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> torch.Tensor:
        _, count = _place.replica()
        sum_ = _exchanges.REDUCE_SUM
        return _exchanges.reduce_scatter(sum_, grad_output, 1.0, 0, count).squeeze(0)


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
        if not self.training or _place.replica()[1] == 1:
            return super().forward(batch)
        self._check_input_dim(batch)
        others = [d for d in range(batch.dim()) if d != 1]
        count = batch.numel() // batch.size(1)
        var, mean = torch.var_mean(batch, dim=others, correction=0)
        counts = torch.full_like(mean, count)
        means, variances, counts = _ByReplica.apply(torch.stack([mean, var, counts])).unbind(1)
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
