"""Parts of the loaders and of `data_parallel` of 2.9."""

from __future__ import annotations

import itertools
from typing import Any

from torch_xla.utils.keyd_queue import Queue


class PerDeviceQueue:
    """The queues of a device: of batches on the host, and of those that are on the device.

    Args:
        device: The device.
        loader_prefetch_size: The most batches that the first one holds.
        device_prefetch_size: The most batches that the second one holds.
    """

    def __init__(self, device: Any, loader_prefetch_size: int, device_prefetch_size: int):
        self.device = device
        self.cpu_loader_queue = Queue(maxsize=loader_prefetch_size)
        self.queue = Queue(maxsize=device_prefetch_size)
        self.close_queue_count = itertools.count()


class ThreadResult:
    """The result of a thread of a loop: `result`."""

    def __init__(self) -> None:
        self.result = None
