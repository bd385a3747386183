"""`torch.load(..., map_location="xla")`.

PyTorch has a device take over a storage before it says what the bytes mean, and builds tensors on
that storage afterwards. A storage of xla holds typed values, so here the bytes stay on the CPU with
a note of where they go, and the tensors that are built on them move: one upload for each storage,
in its dtype, however many tensors share it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_PRIORITY = 100  # after PyTorch's own; none of them claims "xla"


def install() -> None:
    """To be called once."""
    torch.serialization.register_package(_PRIORITY, lambda storage: None, _note_destination)  # type: ignore[arg-type]
    for name in ("_rebuild_tensor", "_rebuild_tensor_v3"):
        setattr(torch._utils, name, _moving(getattr(torch._utils, name)))


def _note_destination(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    if location != "xla" and not location.startswith("xla:"):
        return None
    if getattr(storage, "_torch_load_uninitialized", False):
        raise RuntimeError(
            f"torch.load: expected a file in the format of PyTorch 1.6 or newer for "
            f"map_location='{location}', got an older one. Load it with map_location='cpu' and "
            "move the result."
        )
    storage._xla_destination = torch.device(location)
    return storage


def _moving(original):
    """A function that builds a tensor on a storage; on a noted one the tensor moves."""

    @functools.wraps(original)
    def rebuild(storage: Any, offset: int, size: Any, stride: Any, *args: Any, **kwargs: Any):
        tensor = original(storage, offset, size, stride, *args, **kwargs)
        untyped = storage._untyped_storage
        if not hasattr(untyped, "_xla_destination"):
            return tensor
        moved = getattr(untyped, "_xla_moved", None)
        if moved is None or moved.dtype != tensor.dtype:
            moved = untyped._xla_moved = _whole(tensor).to(untyped._xla_destination)
        result = torch.empty(0, dtype=moved.dtype, device=moved.device)
        if (moved.shape, moved.stride()) == (tensor.shape, tensor.stride()):
            result.set_(moved)  # type: ignore[arg-type]
        else:
            result.set_(moved.untyped_storage(), offset, size, stride)
        return result.requires_grad_(tensor.requires_grad)

    return rebuild


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All that the storage of a tensor holds, in the tensor's sizes where it is all."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    if tensor.is_contiguous() and tensor.numel() == count:
        return tensor.detach()
    return tensor.detach().as_strided((count,), (1,), 0)
