"""`nn.SyncBatchNorm` on xla, which PyTorch has for devices with kernels of their own for it.

Each process tells the others the mean, the spread and the number of its values, in one exchange.
Gradients follow from that of the exchange.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def forward(module: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
    """That of a module that trains, on the values of all processes."""
    module._check_input_dim(input)
    module._check_non_zero_input_channels(input)
    group = module.process_group or torch.distributed.group.WORLD
    mean, spread, count = _of_all(input, group)
    if module.track_running_stats:
        _follow(module, mean, spread, count)
    variance = spread / count
    shape = [1, -1] + [1] * (input.dim() - 2)
    centred = input.to(mean.dtype) - mean.view(shape)
    result = centred * torch.rsqrt(variance + module.eps).view(shape)
    if module.weight is not None:
        result = result * module.weight.view(shape) + module.bias.view(shape)
    return result.to(input.dtype)


def _of_all(input: torch.Tensor, group: Any) -> tuple[Any, Any, Any]:
    """The mean of each channel over all processes, the sum of squared distances; the count."""
    dims = [0, *range(2, input.dim())]
    values = input.double() if input.dtype == torch.float64 else input.float()
    count = values.numel() // values.size(1)
    centre = values.sum(dims) / max(count, 1)
    shape = [1, -1] + [1] * (input.dim() - 2)
    spread = (values - centre.view(shape)).square().sum(dims)
    counts = torch.full((1,), float(count), dtype=values.dtype, device=values.device)
    own = torch.cat([centre, spread, counts]).unsqueeze(0)
    if group.size() > 1:
        own = _Gathered.apply(own, torch.distributed.get_process_group_ranks(group))
    channels = input.size(1)
    centres, spreads, of_each = own[:, :channels], own[:, channels:-1], own[:, -1:]
    total = of_each.sum()
    mean = (centres * of_each).sum(0) / total
    return mean, (spreads + of_each * (centres - mean).square()).sum(0), total


class _Gathered(torch.autograd.Function):
    """The rows of all members. Each has an effect on the losses of all."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, members: list[int]) -> torch.Tensor:
        ctx.members = members
        return torch.ops.torch_xla.all_gather(own, 0, members, len(members), True)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        members = ctx.members
        own = torch.ops.torch_xla.reduce_scatter(
            gradient, "add", 1.0, 0, members, len(members), True
        )
        return own, None


@torch.no_grad()
def _follow(self: Any, mean: Any, spread: Any, count: Any) -> None:
    """Moves the running statistics, as `F.batch_norm` does."""
    self.num_batches_tracked.add_(1)
    factor = self.momentum
    if factor is None:
        factor = 1.0 / self.num_batches_tracked.to(mean.dtype)
    for running, seen in ((self.running_mean, mean), (self.running_var, spread / (count - 1))):
        running.add_(factor * (seen.to(running.dtype) - running))
