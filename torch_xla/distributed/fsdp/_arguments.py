"""The arguments of a wrapper: checks, and values that follow from them."""

from __future__ import annotations

import torch
from torch import nn

from torch_xla import runtime as xr

FLOAT_DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def check_module(module: nn.Module, wrapper: type[nn.Module]) -> None:
    """Raises RuntimeError for a module that cannot be wrapped, or is wrapped by `wrapper`.

    Raises:
        NotImplementedError: In SPMD mode, where one process has all devices.
    """
    if xr.is_spmd():
        raise NotImplementedError(
            f"{wrapper.__name__}: expected a process with one device, got SPMD mode. Wrap the "
            "module in SpmdFullyShardedDataParallel of "
            "torch_xla.experimental.spmd_fully_sharded_data_parallel."
        )
    if isinstance(module, wrapper):
        raise RuntimeError(
            "XlaFullyShardedDataParallel: expected a module that is not wrapped yet. Wrap inner "
            "modules before outer ones, each once."
        )
    if not any("forward" in c.__dict__ for c in type(module).__mro__ if c is not nn.Module):
        raise RuntimeError(
            "XlaFullyShardedDataParallel: expected a module with a forward, got "
            f"{type(module).__name__}. Wrap the modules in it; full values exist within forward."
        )


def float_dtype(argument: str, dtype: torch.dtype | None) -> torch.dtype | None:
    """The dtype, if it is one of `FLOAT_DTYPES` or None."""
    if dtype is not None and dtype not in FLOAT_DTYPES:
        raise ValueError(f"{argument}: expected one of {FLOAT_DTYPES}, got {dtype}.")
    return dtype


def place_in_group(
    groups: list[list[int]] | None, rank: int | None, size: int | None
) -> tuple[int, int]:
    """This process's place among those that hold shards, and how many these are."""
    if groups is None:
        return xr.global_ordinal(), xr.world_size()
    if rank is None or size is None:
        raise ValueError(
            "XlaFullyShardedDataParallel: expected sharding_rank and sharding_world_size with "
            "sharding_groups."
        )
    return rank, size


def predivide_factor(count: int) -> float:
    """About the root of `count`: so neither gradients nor their sums leave a narrow dtype."""
    factor = 1
    while count % factor == 0 and count / factor > factor:
        factor *= 2
    return float(factor)


def flat_groups(params: list[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Parameters that become one: of a dtype, with gradients or without."""
    groups: dict[tuple[bool, torch.dtype], list[nn.Parameter]] = {}
    for p in sorted(params, key=lambda p: not p.requires_grad):
        groups.setdefault((p.requires_grad, p.dtype), []).append(p)
    return list(groups.values())


def buckets(shards: list[nn.Parameter], count: int, bucket_size_mb: int | None) -> list[list[int]]:
    """The parameters whose gradients go in one exchange: so many MiB of them, at least one."""
    cap = (bucket_size_mb or 0) << 20
    buckets: list[list[int]] = []
    used = 0
    for i, shard in enumerate(shards):
        size = shard.numel() * shard.element_size() * count
        if not buckets or used + size > cap:
            buckets.append([])
            used = 0
        buckets[-1].append(i)
        used += size
    return buckets
