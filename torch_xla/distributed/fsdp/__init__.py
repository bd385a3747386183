"""Helpers for models whose parameters are split among devices."""

from torch_xla.distributed.fsdp.utils import checkpoint_module

__all__ = ["checkpoint_module"]
