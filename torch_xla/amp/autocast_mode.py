"""Mixed precision on xla devices."""

from __future__ import annotations

import torch

from torch_xla._src.device.names import device_name as _device_name


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
