"""Checkpoints of state that is split among devices, as `torch.distributed.checkpoint` writes them.

The planners write each part of a split tensor once and read any layout into any other; the manager
keeps checkpoints by step, writes them in the background and takes one on preemption
(docs/checkpoints.md).
"""

from torch_xla.experimental.distributed_checkpoint.manager import CheckpointManager
from torch_xla.experimental.distributed_checkpoint.planners import SPMDLoadPlanner, SPMDSavePlanner
from torch_xla.experimental.distributed_checkpoint.util import prime_optimizer

__all__ = ["CheckpointManager", "SPMDLoadPlanner", "SPMDSavePlanner", "prime_optimizer"]
