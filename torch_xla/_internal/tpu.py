"""The TPU chips of this machine, found without opening them."""

from __future__ import annotations

from torch_xla._src.plugins import TpuPlugin


def num_available_chips() -> int:
    """The number of TPU chips of this machine."""
    plugin = TpuPlugin()
    return plugin.physical_chip_count() if plugin.present() else 0


def num_available_devices() -> int:
    """The number of TPU devices of this machine, one a chip; 0 on machines without TPU."""
    return num_available_chips()
