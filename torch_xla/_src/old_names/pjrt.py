"""The functions of `torch_xla._internal.pjrt`, which start processes and threads as in 2.9."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch_xla import _XLAC, runtime
from torch_xla._src.device import plugins
from torch_xla._src.job import place, store
from torch_xla._src.job import spawn as _spawn
from torch_xla.core import xla_env_vars as xenv
from torch_xla.core import xla_model as xm

R = TypeVar("R")


class _SpawnFn:
    """Passes the ordinal to a function, before its other arguments."""

    def __init__(self, fn: Callable[..., R], *args: Any, **kwargs: Any):
        self.fn = fn
        self.args = args
        self.kwargs = kwargs

    def __call__(self) -> None:
        self.fn(runtime.global_ordinal(), *self.args, **self.kwargs)


def _merge_replica_results(replica_results: list[tuple[int, R]]) -> dict[int, R]:
    """The results by their ordinals, of which none may come twice."""
    merged = dict(replica_results)
    assert len(merged) == len(replica_results), (
        f"expected one result for each ordinal, got those of {[o for o, _ in replica_results]}."
    )
    return merged


def _run_thread_per_device(
    local_rank: int,
    local_world_size: int,
    fn: Callable[[], R],
    initializer_fn: Callable[[int, int], None],
) -> dict[int, R]:
    """Calls a function for each device of this process, on a thread whose default device it is."""
    initializer_fn(local_rank, local_world_size)
    names = _XLAC._xla_get_devices()

    def run(name: str) -> R:
        _XLAC._xla_set_default_device(name)
        return fn()

    with ThreadPoolExecutor(max_workers=len(names)) as executor:
        return _merge_replica_results(list(enumerate(executor.map(run, names))))


def _initialize_single_process(local_rank: int, local_world_size: int) -> None:
    """Sets the environment's variables of 2.9, unless they are set."""
    os.environ.setdefault(xenv.PJRT_LOCAL_PROCESS_RANK, str(local_rank))
    os.environ.setdefault(xenv.PJRT_LOCAL_PROCESS_COUNT, str(local_world_size))


def initialize_singleprocess() -> None:
    """Sets this process up to use one device alone."""
    os.environ.setdefault(xenv.PJRT_LOCAL_PROCESS_COUNT, "1")
    plugins.find().plugin.configure_single_process()
    xm.set_replication(xm.xla_device(), [])


def initialize_multiprocess(local_rank: int, local_world_size: int) -> None:
    """Sets this process up as one of several of this host."""
    _initialize_single_process(local_rank, local_world_size)
    plugins.find().plugin.configure_multiprocess(local_rank, local_world_size)
    xm.set_replication(xm.xla_device(), xm.get_xla_supported_devices())


def _run_singleprocess(fn: Callable[..., R], *args: Any, **kwargs: Any) -> R:
    """Calls a function in this process, on one device."""
    initialize_singleprocess()
    return fn(*args, **kwargs)


def run_multiprocess(
    fn: Callable[..., R], *args: Any, start_method: str = "spawn", **kwargs: Any
) -> dict[int, R]:
    """Calls a function in a process for each device of this host; its results by the ordinals."""
    if _spawn.device_count() == 1:
        return {0: fn(*args, **kwargs)}
    context = _spawn.spawn(
        _keep_result, (fn, args, kwargs), None, join=False, daemon=False, start_method=start_method
    )
    if context is None:  # this is a process of several
        return {place.rank(): pickle.loads(store.store().get(_key(place.rank())))}
    while not context.join():
        pass
    ranks = range(len(context.processes))
    return {rank: pickle.loads(context.store.get(_key(rank))) for rank in ranks}


def _keep_result(index: int, fn: Callable[..., R], args: tuple, kwargs: dict[str, Any]) -> None:
    result = pickle.dumps(fn(*args, **kwargs))
    store.store().set(_key(place.rank()), result)  # type: ignore[arg-type]


def _key(rank: int) -> str:
    return f"result/{rank}"


def spawn_function(
    fn: Callable[..., Any],
    nprocs: int | None = None,
    start_method: str = "spawn",
    args: tuple = (),
) -> None:
    """As `xmp.spawn`."""
    _spawn.spawn(fn, args, nprocs, join=True, daemon=False, start_method=start_method)


def spawn_threads(fn: Callable[..., Any], args: tuple = ()) -> None:
    """Calls `fn(index, *args)` for each device of this process, on a thread of its own."""
    names = _XLAC._xla_get_devices()

    def run() -> None:
        fn(names.index(_XLAC._xla_get_default_device()), *args)

    _run_thread_per_device(0, 1, run, _initialize_single_process)
