"""Where PyTorch's `openxla` backend looks for `torch_xla._dynamo.dynamo_bridge`."""

from typing import Any

from torch_xla._dynamo import dynamo_bridge
from torch_xla._dynamo.dynamo_bridge import (
    alias_with_buffer_donor_config,
    extract_compiled_graph,
    extract_compiled_graph_helper,
    extract_graph_helper,
    extract_internal,
    get_fallback_ops,
    is_xla_tensor,
    partition_fx_graph_for_cpu_fallback,
)

__all__ = [
    "alias_with_buffer_donor_config",
    "extract_compiled_graph",
    "extract_compiled_graph_helper",
    "extract_graph_helper",
    "extract_internal",
    "get_fallback_ops",
    "is_xla_tensor",
    "partition_fx_graph_for_cpu_fallback",
]


def __getattr__(name: str) -> Any:
    if name in ("dynamo_debug", "ptxla_debug"):
        return getattr(dynamo_bridge, name)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
