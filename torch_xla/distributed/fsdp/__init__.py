"""Models whose parameters are split among devices."""

from torch_xla.distributed.fsdp.utils import checkpoint_module
from torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel import XlaFullyShardedDataParallel

__all__ = ["XlaFullyShardedDataParallel", "checkpoint_module"]
