"""Starting a program's function on each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def launch(
    fn: Callable[..., Any],
    args: tuple = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Runs `fn(index, *args)` for each device, as `xmp.spawn`, and waits until all have returned.

    In a process that torchrun, SLURM or Open MPI has started as one of several it runs here, once;
    the index is then the one among the processes of this host.

    Args:
        fn: The function. Its first argument is the global ordinal.
        args: Its further arguments.
        start_method: How processes are started.
        debug_single_process: Whether it runs once, in this process.

    Raises:
        RuntimeError: This process has used a device already, and there are several.
        torch.multiprocessing.ProcessException: A process has failed; the text has its traceback.
    """
    from torch_xla._src.job import place, spawn, watch

    if place.world_size() > 1:
        watch.start()
        fn(place.local_rank(), *args)
    else:
        nprocs = 1 if debug_single_process else None
        spawn.spawn(fn, args, nprocs, join=True, daemon=False, start_method=start_method)
