"""The names of devices, as the extension takes them, and what is on one."""

from __future__ import annotations

from typing import Any

import torch


def device_name(device: str | int | torch.device | None) -> str:
    """`xla:<index>`, or the empty text for the calling thread's default device.

    Raises:
        ValueError: The device is of another type.
    """
    if device is None or device == "":
        return ""
    if isinstance(device, int):
        return f"xla:{device}"
    device = torch.device(device)
    if device.type != "xla":
        raise ValueError(f"expected an xla device, got '{device}'. Pass torch_xla.device().")
    return "" if device.index is None else str(device)


def is_xla_tensor(value: Any) -> bool:
    """True if a value is a tensor on xla; a fake one is, too."""
    return isinstance(value, torch.Tensor) and value.device.type == "xla"
