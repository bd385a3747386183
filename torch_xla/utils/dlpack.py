"""Tensors shared with other libraries, without a copy where the memory allows.

What is exported shows the tensor's contents of that moment, and goes on doing so: later changes of
the tensor go elsewhere. Writing to shared memory from outside is seen by the xla tensor as well,
even by operations that were called before and have not run yet; call `torch_xla.sync(wait=True)`
first, or copy.
"""

from __future__ import annotations

from typing import Any

import torch

from torch_xla._src.patches import dlpack as _dlpack

__all__ = ["from_dlpack", "to_dlpack"]


def to_dlpack(xla_tensor: torch.Tensor) -> Any:
    """A DLPack capsule of a tensor, on the CPU or CUDA device that holds it.

    `torch.utils.dlpack.to_dlpack`, `torch.from_dlpack` and `numpy.from_dlpack` take xla tensors
    too. What is recorded for the tensor runs first.
    """
    return torch.utils.dlpack.to_dlpack(xla_tensor)


def from_dlpack(ext_tensor: Any) -> torch.Tensor:
    """An xla tensor with the contents of a capsule, or of an object with `__dlpack__`.

    It uses the same memory where the plugin can (on the CPU: memory aligned to 64 bytes), else a
    copy. It is on the device of that memory, or on the default device.
    """
    return _dlpack.borrow(ext_tensor)
