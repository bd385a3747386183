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

    Args:
        fn: The function. Its first argument is the global ordinal.
        args: Its further arguments.
        start_method: How processes are started.
        debug_single_process: Whether it runs once, in this process.

    Raises:
        NotImplementedError: There is more than one device to run on; not supported yet.
    """
    from torch_xla.distributed.xla_multiprocessing import spawn

    spawn(fn, args, nprocs=1 if debug_single_process else None, start_method=start_method)
