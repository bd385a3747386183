"""Intel's GPUs: `PJRT_DEVICE=XPU`."""

from __future__ import annotations

import os

from torch_xla._src.device.plugins import DevicePlugin


class XpuPlugin(DevicePlugin):
    """The library that XPU_LIBRARY_PATH names."""

    def library_path(self) -> str:
        return os.environ.get("XPU_LIBRARY_PATH", "libxpu.so")

    def configure_single_process(self) -> None:
        pass
