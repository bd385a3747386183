"""Starting the replicas of a job.

Usually imported as `import torch_xla.distributed.xla_multiprocessing as xmp`. This version runs
jobs of one process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch

from torch_xla import _XLAC


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Runs `fn(index, *args)` for each device of the job.

    Args:
        fn: The function. Its first argument is the global ordinal.
        args: Its further arguments.
        nprocs: 1, or None for all devices of this host. With one device `fn` runs in this process.
        join: Whether to wait until all have returned.
        daemon: Whether the processes are daemons.
        start_method: How processes are started.

    Returns:
        None if `fn` ran in this process.

    Raises:
        NotImplementedError: There is more than one device to run on; not supported yet.
    """
    if nprocs is None:
        nprocs = _XLAC._xla_num_devices()
    if nprocs != 1:
        raise NotImplementedError(
            f"xmp.spawn: expected nprocs=1, got {nprocs} (without nprocs: the number of devices). "
            "Jobs of several processes are not supported yet. Pass nprocs=1."
        )
    fn(0, *args)


class MpModelWrapper:
    """Holds a model in the memory of the parent process until each replica moves it to its device.

    Args:
        model: The model, on the CPU.
    """

    def __init__(self, model: torch.nn.Module):
        self._model = model
        self._lock = threading.Lock()

    def to(self, device: str | torch.device) -> torch.nn.Module:
        """Moves the model to a device, one replica of this host at a time, and returns it."""
        with self._lock:
            return self._model.to(device)


class MpSerialExecutor:
    """Runs a function, such as a download, in each replica of this host, one after the other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def run(self, fn: Callable[[], Any]) -> Any:
        """Calls `fn` when no other replica is in it, and returns what it returns."""
        with self._lock:
            return fn()
