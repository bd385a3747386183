"""Streams and events of xla devices.

A device has one stream: its work is ordered by the data it uses and by the order of launches, so
all streams of a device are equal and there is nothing to switch between. Whoever waits for an event
or a stream, or queries one, has launched what was recorded until then, as by `torch_xla.sync()`. An
event with a time launches when it is recorded.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.device.names import device_name

_Device = str | int | torch.device | None


def _device(device: _Device) -> torch.device:
    return torch.device(device_name(device) or _XLAC._xla_get_default_device())


class Stream(torch.Stream):
    """The stream of a device, by default that of the default device. The priority means nothing."""

    def __new__(cls, device: _Device = None, priority: int = 0, **kwargs: Any) -> Stream:
        if "stream_id" in kwargs:
            return super().__new__(cls, priority=priority, **kwargs)
        return super().__new__(cls, device=_device(device), priority=priority)


class Event(torch.Event):
    """A point in a device's work; what is made is a `torch.Event`.

    Args:
        enable_timing: Whether `elapsed_time` may be asked of it.
        blocking, interprocess: Mean nothing; PyTorch's other devices have them.
    """

    def __new__(
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> Any:
        # elapsed_time takes no instances of subclasses.
        return torch.Event("xla", enable_timing=enable_timing)


def current_stream(device: _Device = None) -> Stream:
    """The stream of a device, by default of the default device."""
    return Stream(device)


def default_stream(device: _Device = None) -> Stream:
    """The stream of a device, by default of the default device."""
    return Stream(device)


def set_stream(stream: torch.Stream | None) -> None:
    """Makes the stream's device the default one, as on other devices. None changes nothing."""
    if stream is not None:
        _XLAC._xla_set_default_device(device_name(stream.device))


class StreamContext:
    """Context manager: the stream's device as default. None changes nothing."""

    def __init__(self, stream: torch.Stream | None):
        self.stream = stream

    def __enter__(self) -> None:
        self._previous = _device(None)
        set_stream(self.stream)

    def __exit__(
        self,
        exception_type: type[BaseException] | None,
        exception: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _XLAC._xla_set_default_device(str(self._previous))


def stream(stream: torch.Stream | None) -> StreamContext:
    """`with torch.xla.stream(s)`: see `StreamContext`."""
    return StreamContext(stream)
