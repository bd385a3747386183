"""The memory that a device uses."""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict

import torch

from torch_xla import _XLAC
from torch_xla._src.device.names import device_name


class MemoryInfo(TypedDict):
    """Memory of a device, or of this process where the plugin keeps no statistics."""

    bytes_used: int
    bytes_limit: int
    peak_bytes_used: int
    kb_free: int
    kb_total: int
    source: str  # "plugin" or "process"


def memory_info(device: str | int | torch.device | None = None) -> MemoryInfo:
    """The memory of a device.

    A plugin that keeps statistics gives them (`source` is "plugin"). The CPU plugin keeps none:
    then the figures are those of this process and its machine (`source` is "process"): resident
    memory, the machine's or the control group's limit, and the highest resident memory so far.
    """
    name = device_name(device) or _XLAC._xla_get_default_device()
    info = _XLAC._xla_memory_info(name)
    if info.get("bytes_limit"):
        used, limit = info["bytes_used"], info["bytes_limit"]
        peak, source = info["peak_bytes_used"], "plugin"
        free = limit - used
    else:
        used, peak = _resident()
        limit, available = _machine()
        free, source = min(available, limit - used), "process"
    return MemoryInfo(
        bytes_used=used,
        bytes_limit=limit,
        peak_bytes_used=peak,
        kb_free=max(free, 0) >> 10,
        kb_total=limit >> 10,
        source=source,
    )


def _fields(path: str) -> dict[str, int]:
    """The lines `name: value kB` of a file of /proc, in bytes."""
    fields = {}
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if value.endswith(" kB"):
            fields[name] = int(value.split()[0]) << 10
    return fields


def _resident() -> tuple[int, int]:
    fields = _fields("/proc/self/status")
    return fields["VmRSS"], fields["VmHWM"]


def _machine() -> tuple[int, int]:
    """The memory this process may use in all, and what of it is available."""
    fields = _fields("/proc/meminfo")
    limit, available = fields["MemTotal"], fields["MemAvailable"]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = Path(path).read_text().strip()
        except OSError:
            continue  # the other version of control groups, or none
        if text.isdigit():
            limit = min(limit, int(text))
    return limit, available
