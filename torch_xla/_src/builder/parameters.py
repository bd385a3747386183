"""Parameters of a computation that stand for tensors, in the order in which they were added."""

from __future__ import annotations

from typing import Any

import torch

from torch_xla._src.builder import ops as builder_ops
from torch_xla._src.builder.shapes import tensor_shape


class Parameters:
    """The parameters of one computation.

    Args:
        name: The name of its builder.
    """

    def __init__(self, name: str):
        self.builder: Any = builder_ops.create_builder(name)
        self.ops: list[builder_ops.Op] = []
        self.tensors: list[torch.Tensor] = []

    def add(self, tensor: torch.Tensor) -> int:
        """Adds one of the tensor's shape and returns its number."""
        shape = tensor_shape(tensor)
        self.ops.append(builder_ops.mkparam(self.builder, len(self.ops), shape))
        self.tensors.append(tensor)
        return len(self.ops) - 1
