"""FSDP whose parts live in processes of their own: its name alone, which programs import."""

from __future__ import annotations

from typing import Any

from torch import nn


class XlaFullyShardedDataParallel(nn.Module):
    """FSDP among the processes of a job; jobs of several processes are not supported yet.

    `transformers` and others import the name beside FSDPv2, which splits parameters among the
    devices of one process: `torch_xla.experimental.spmd_fully_sharded_data_parallel`.

    Raises:
        NotImplementedError: Always.
    """

    def __init__(self, module: nn.Module, *args: Any, **kwargs: Any):
        raise NotImplementedError(
            "XlaFullyShardedDataParallel: jobs of several processes are not supported yet. Call "
            "torch_xla.runtime.use_spmd() and wrap the module in SpmdFullyShardedDataParallel of "
            "torch_xla.experimental.spmd_fully_sharded_data_parallel."
        )
