"""Where PyTorch's `openxla` backend looks for `torch_xla._dynamo.dynamo_bridge`."""

from torch_xla._dynamo.dynamo_bridge import (
    extract_compiled_graph,
    extract_compiled_graph_helper,
    is_xla_tensor,
)

__all__ = ["extract_compiled_graph", "extract_compiled_graph_helper", "is_xla_tensor"]
