"""Models whose parameters are split among devices."""

from torch_xla.distributed.fsdp.loading import load_full_state_dict, load_sharded_model_checkpoints
from torch_xla.distributed.fsdp.optimizer_state import load_sharded_optimizer_checkpoints
from torch_xla.distributed.fsdp.state_dict_utils import (
    consolidate_sharded_model_checkpoints,
    consolidate_sharded_state_dicts,
)
from torch_xla.distributed.fsdp.utils import checkpoint_module
from torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel import XlaFullyShardedDataParallel

__all__ = [
    "XlaFullyShardedDataParallel",
    "checkpoint_module",
    "consolidate_sharded_model_checkpoints",
    "consolidate_sharded_state_dicts",
    "load_full_state_dict",
    "load_sharded_model_checkpoints",
    "load_sharded_optimizer_checkpoints",
]
