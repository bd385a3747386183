"""Something to do when a tensor has been computed."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from torch_xla import _XLAC


def on_ready_callback(tensor: torch.Tensor, callback: Callable[[torch.Tensor], None]) -> None:
    """Calls `callback(tensor)` on another thread once the device has computed the tensor.

    What it needs is launched now, the rest stays recorded. What the callback raises is printed, as
    of any thread.

    Args:
        tensor: An xla tensor.
        callback: The function.
    """
    _XLAC._xla_sync_multi([tensor], [], wait=False)
    wait = _XLAC._xla_mark(str(tensor.device))

    def run() -> None:
        wait()
        callback(tensor)

    threading.Thread(target=run, name="torch_xla on_ready_callback").start()


def on_ready_event(tensor: torch.Tensor) -> threading.Event:
    """An event that is set once the device has computed the tensor."""
    event = threading.Event()
    on_ready_callback(tensor, lambda _: event.set())
    return event
