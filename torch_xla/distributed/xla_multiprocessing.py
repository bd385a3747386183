"""Starting the replicas of a job: one process for each device.

Usually imported as `import torch_xla.distributed.xla_multiprocessing as xmp`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla._src.job import spawn as _spawn
from torch_xla._src.job.turns import Turns
from torch_xla._src.old_names.replica_groups import (  # noqa: F401
    _TPU_V5P,
    _TPU_V6E,
    _get_xyz_bounds,
    _V5P_2x2x2_ORDER,
    _v5p_create_replica_groups,
    _V6E_2x4_ORDER,
    _v6e_create_replica_groups,
    create_optimized_replica_groups,
    device_kind_handler_dict,
)


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> _spawn.Context | None:
    """Runs `fn(index, *args)` for each device of this host, in a process of its own.

    With one device it runs in this process, and so it does, once, in a process that torchrun or
    another launcher has started as one of several.

    Args:
        fn: The function. Its first argument is the global ordinal. With "spawn" and "forkserver" a
            process imports the program again: `fn` is one of a module, and what starts the program
            stands behind `if __name__ == "__main__":`.
        args: Its further arguments.
        nprocs: None or the number of all devices of this host (`CPU_NUM_DEVICES` on the CPU), or 1,
            which runs `fn` in this process.
        join: Whether to wait until all have returned.
        daemon: Whether the processes are daemons.
        start_method: How processes are started: "spawn", "fork" or "forkserver".

    Returns:
        Without `join` a context, whose `join()` is to be called until it is true; else None.

    Raises:
        ValueError: `nprocs` is another number.
        RuntimeError: This process has used a device, which no other could then share.
        torch.multiprocessing.ProcessRaisedException: A process has raised; the text has its
            traceback. The others are ended.
        torch.multiprocessing.ProcessExitedException: A process was killed, or has ended with
            another exit status than 0.
    """
    return _spawn.spawn(fn, args, nprocs, join, daemon, start_method)


class MpModelWrapper:
    """Holds a model until each replica moves it to its device, one replica of a host at a time.

    Made before `spawn(start_method="fork")`, the processes share the parent's memory of the model.

    Args:
        model: The model, on the CPU.
    """

    def __init__(self, model: torch.nn.Module):
        self._model = model
        self._turns = Turns()

    def to(self, device: str | torch.device) -> torch.nn.Module:
        """Moves the model to a device, one replica of this host at a time, and returns it."""
        with self._turns:
            return self._model.to(device)


class MpSerialExecutor:
    """Runs a function, such as a download, in each replica of this host, one after the other.

    Each replica makes its executors in the same order.
    """

    def __init__(self) -> None:
        self._turns = Turns()

    def run(self, fn: Callable[[], Any]) -> Any:
        """Calls `fn` when no other replica is in it, and returns what it returns."""
        with self._turns:
            return fn()
