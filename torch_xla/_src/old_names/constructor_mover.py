"""Tensors that a captured graph makes on the CPU for use on xla, made on xla."""

from __future__ import annotations

import torch
from torch._inductor.fx_passes.post_grad import ConstructorMoverPass


class XLAConstructorMoverPass(ConstructorMoverPass):
    """A pass over an fx graph: `XLAConstructorMoverPass()(module.graph)`.

    Backend `openxla` needs none: it sends arguments, and constants once.
    """

    def __init__(self):
        super().__init__("xla", allow_outputs=False, allow_inputs=True)

    def allow_cpu_device(self, node: torch.fx.Node) -> bool:
        """True if a call on xla may take tensors of the CPU: numbers in tensors, and indices."""
        return super().allow_cpu_device(node) or node.target in (
            torch.ops.aten.index_copy.default,
            torch.ops.aten.index_add.default,
        )
