"""Automatic mixed precision: `autocast`, `GradScaler`, and `syncfree` optimizers (docs/amp.md)."""

from __future__ import annotations

import functools

import torch

from torch_xla._src.names import device_name as _device_name
from torch_xla._src.submodules import importer as _importer
from torch_xla.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]

custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="xla")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="xla")

__getattr__ = _importer(__name__)


class autocast(torch.amp.autocast):  # named as in PyTorch
    """Runs what is inside in mixed precision; the same as `torch.autocast("xla", ...)`.

    Args:
        device: An xla device, or its name.
        enabled: Whether to cast inside.
        dtype: The narrow dtype: bfloat16, unless `torch.set_autocast_dtype` chose another.
        cache_enabled: Whether a parameter is cast once for all its uses inside.
    """

    def __init__(
        self,
        device: str | torch.device = "xla",
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool = True,
    ) -> None:
        _device_name(device)
        super().__init__("xla", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
