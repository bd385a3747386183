"""Old names of `torch_xla.runtime`, for programs that import them from here."""

from __future__ import annotations

from torch_xla.core.xla_model import broadcast_master_param, rendezvous
from torch_xla.runtime import (
    addressable_device_count,
    device_type,
    global_device_count,
    global_ordinal,
    local_device_count,
    local_ordinal,
    local_process_count,
    process_count,
    process_index,
    set_device_type,
    using_pjrt,
    world_size,
    xla_device,
)

__all__ = [
    "addressable_device_count",
    "broadcast_master_param",
    "device_type",
    "global_device_count",
    "global_ordinal",
    "local_device_count",
    "local_ordinal",
    "local_process_count",
    "process_count",
    "process_index",
    "rendezvous",
    "set_device_type",
    "using_pjrt",
    "world_size",
    "xla_device",
]
