"""One program on many devices: how tensors are split among them.

Usually imported as `import torch_xla.distributed.spmd as xs`.
"""

from typing import Any

from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShard, XLAShardedTensor, sharding_of  # isort: skip
from torch_xla.distributed.spmd import exchanges, sharding_operators  # noqa: F401  they register
from torch_xla.distributed.spmd.manual import all_reduce, reduce_scatter
from torch_xla.distributed.spmd.xla_sharding import (
    HybridMesh,
    MarkShardingFunction,
    Mesh,
    ShardingSpec,
    ShardingType,
    _mark_manual_sharding,
    annotate_custom_sharding,
    apply_backward_optimization_barrier,
    apply_xla_patch_to_nn_linear,
    clear_sharding,
    disable_manual_sharding,
    enable_manual_sharding,
    get_1d_mesh,
    get_global_mesh,
    mark_sharding,
    mark_sharding_with_gradients,
    set_global_mesh,
    shard_as,
    wrap_as_sharded_tensor,
    wrap_if_sharded,
    xla_patched_nn_linear_forward,
)

__all__ = [
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "ShardingSpec",
    "ShardingType",
    "XLAShard",
    "XLAShardedTensor",
    "_mark_manual_sharding",
    "all_reduce",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "auto_policy",
    "clear_sharding",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "reduce_scatter",
    "set_global_mesh",
    "shard_as",
    "sharding_of",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_distribute_module",
    "xla_distribute_tensor",
    "xla_patched_nn_linear_forward",
]


def __getattr__(name: str) -> Any:
    # PyTorch's DTensor takes long to import, and few programs need it.
    if name in ("auto_policy", "xla_distribute_module", "xla_distribute_tensor"):
        from torch_xla.distributed.spmd import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
