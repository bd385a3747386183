"""Answers to torch._dynamo about a device. Importing this imports torch._dynamo."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch._dynamo.device_interface import DeviceInterface, register_interface_for_device

from torch_xla._src.device import devices
from torch_xla._src.dynamo.uncaptured import constant

_xla = torch.get_device_module("xla")


class XlaInterface(DeviceInterface):
    """`torch.xla`, under the names that torch._dynamo uses."""

    device = _xla.device
    Event = _xla.Event
    Stream = _xla.Stream
    current_device = staticmethod(_xla.current_device)
    set_device = staticmethod(_xla.set_device)
    exchange_device = staticmethod(_xla._exchange_device)
    maybe_exchange_device = staticmethod(_xla._exchange_device)
    device_count = staticmethod(_xla.device_count)
    is_available = staticmethod(_xla.is_available)
    stream = staticmethod(_xla.stream)
    current_stream = staticmethod(_xla.current_stream)
    set_stream = staticmethod(_xla.set_stream)
    synchronize = staticmethod(_xla.synchronize)
    is_bf16_supported = staticmethod(_xla.is_bf16_supported)
    memory_allocated = staticmethod(_xla.memory_allocated)

    class Worker:
        """For processes that compile: they ask without a client of their own."""

        set_device = staticmethod(_xla.set_device)
        current_device = staticmethod(_xla.current_device)

        @staticmethod
        def get_device_properties(device: Any = None) -> SimpleNamespace:
            return _xla.get_device_properties(device)

    @staticmethod
    def _set_stream_by_id(stream_id: int, device_index: int, device_type: int) -> None:
        """A device has one stream."""

    @staticmethod
    def get_raw_stream(device_idx: int) -> int:
        return 0

    @staticmethod
    def get_compute_capability(device: Any = None) -> str:
        return ""


def register() -> None:
    register_interface_for_device("xla", XlaInterface)
    constant(devices.device)  # a part of a graph, as that of `device="xla"` is
