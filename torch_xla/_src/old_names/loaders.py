"""What the loaders and `data_parallel` of 2.9 are made of."""

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
    """What a thread of a loop leaves: `result`."""

    def __init__(self) -> None:
        self.result = None
