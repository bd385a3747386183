"""xla tensors in PyTorch's own functions of DLPack.

PyTorch refuses xla tensors there unless the plugin is one of CUDA. `install` lets them take part: a
tensor is exported as one of PyTorch's own over the same memory, so everything else about DLPack
(versions, dtypes, requests for a copy) is PyTorch's.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.device.names import is_xla_tensor


def install() -> None:
    """To be called once."""
    for name in ("__dlpack__", "__dlpack_device__"):
        setattr(torch.Tensor, name, _of_lent(getattr(torch.Tensor, name)))
    to_dlpack = _of_lent(torch.utils.dlpack.to_dlpack)
    torch.utils.dlpack.to_dlpack = torch.to_dlpack = to_dlpack


def lend(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor on the CPU (or CUDA) over the memory of an xla tensor."""
    if type(tensor) is not torch.Tensor and type(tensor) is not torch.nn.Parameter:
        return tensor  # a subclass says itself what it is
    return _XLAC._xla_lend(tensor.detach()).requires_grad_(tensor.requires_grad)


def borrow(ext_tensor: Any) -> torch.Tensor:
    """An xla tensor over the memory of another library's tensor, or of a capsule."""
    tensor = torch.from_dlpack(ext_tensor)
    if tensor.device.type == "cuda":
        torch.cuda.current_stream(tensor.device).synchronize()  # what still writes it
        return _XLAC._xla_borrow(tensor, _device_of_gpu(tensor.device.index))
    return _XLAC._xla_borrow(tensor)


def _device_of_gpu(index: int) -> str:
    return f"xla:{index}" if index < _XLAC._xla_num_devices() else ""


def _of_lent(original: Callable) -> Callable:
    """The function, which for an xla tensor gets the tensor that shares its memory."""

    def function(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_xla_tensor(tensor):
            tensor = lend(tensor)
        return original(tensor, *args, **kwargs)

    if isinstance(original, types.FunctionType):
        return functools.wraps(original)(function)
    function.__doc__ = original.__doc__
    function.__name__ = "to_dlpack"
    return function
