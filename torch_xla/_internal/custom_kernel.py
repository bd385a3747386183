"""Operators of torch_xla that graphs of `torch.compile` hold, at the place where 2.9 has them."""

from torch_xla.distributed.spmd.sharding_operators import dynamo_mark_sharding

dynamo_mark_sharding_xla = dynamo_mark_sharding

__all__ = ["dynamo_mark_sharding", "dynamo_mark_sharding_xla"]
