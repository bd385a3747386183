"""Automatic mixed precision: `autocast`, `GradScaler`, and `syncfree` optimizers (docs/amp.md)."""

from __future__ import annotations

import functools

import torch

from torch_xla._src.submodules import importer as _importer
from torch_xla.amp.autocast_mode import autocast
from torch_xla.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]

custom_fwd = functools.partial(torch.amp.custom_fwd, device_type="xla")
custom_bwd = functools.partial(torch.amp.custom_bwd, device_type="xla")

__getattr__ = _importer(__name__)
