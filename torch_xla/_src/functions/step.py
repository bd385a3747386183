"""The barrier at the end of a step, and the closures that run after it."""

from __future__ import annotations

import atexit
import collections
import gc
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

from torch_xla import _XLAC

# Functions called after each barrier, with its cause: by torch_xla.debug.record() while it is on.
on_barrier: Callable[[str], None] | None = None

# The line of `PT_XLA_DEBUG_LEVEL` about the barrier before a compiled function, which ends no step.
CLEARS = "torch_xla.compile clear the pending graph prior calling the target function"

# The name of programs that no torch_xla.compile names: set by `_XLAC._set_current_graph_name`.
named: _XLAC._Region | None = None
named_name = ""


# Set where torch._dynamo has captured a graph since the last barrier. It leaves circles behind that
# hold tensors of the step: these would be results of its program, and of no later step's.
has_captured = False


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Launches everything that was recorded for the calling thread's default device.

    The graph is compiled if it is new and handed to the device; Python goes on while it runs. Then
    the closures of `xm.add_step_closure` run. Without anything recorded this costs next to nothing,
    and it creates no client.

    Args:
        wait: Whether to return only when the device has finished.
        reset_scope: Accepted for programs written for earlier versions, without effect.

    Raises:
        RuntimeError: The step, or an earlier one that was still running, failed on the device.
        Exception: What a step closure raised; the ones queued after it run after the next barrier.
    """
    barrier("", "user torch_xla.sync", wait)


def barrier(
    device: str,
    cause: str,
    wait: bool = False,
    region: _XLAC._Region | None = None,
    graph_name: str = "",
) -> None:
    """`sync` of the device of this name; without a name that of the calling thread's default.

    `cause` and `graph_name` are what `PT_XLA_DEBUG_LEVEL` tells of it. `region` is what
    `torch_xla.compile` ends with this, which has a name of its own.
    """
    global has_captured
    if has_captured:
        has_captured = False
        gc.collect()
    _XLAC._xla_step_marker(
        device, [], wait, region=region or named, cause=cause, graph_name=graph_name
    )
    if on_barrier is not None:
        on_barrier(cause)
    if _closures or _background:
        run_closures(device or _XLAC._xla_get_default_device())


def clear_pending(region: _XLAC._Region) -> None:
    """The barrier before what is to be one graph."""
    barrier("", CLEARS, graph_name=region.name and f"{region.name}_clear_pending")


# For each device, the closures that wait for the next barrier, in the order they were added. Only
# devices that have some are in here.
_closures: dict[str, collections.deque[tuple[Callable, tuple, bool]]] = {}
# The threads of asynchronous closures, one for each device that had some.
_background: dict[str, _Background] = {}
_lock = threading.Lock()


def add_closure(closure: Callable, args: tuple = (), run_async: bool = False) -> None:
    """Queues a call for after the next barrier of the calling thread's default device."""
    if not callable(closure):
        raise TypeError(
            f"add_step_closure: expected a function, got {type(closure).__name__}. Pass the "
            "function and its arguments apart: add_step_closure(print_loss, args=(loss,))."
        )
    if not isinstance(args, (tuple, list)):
        raise TypeError(
            f"add_step_closure: expected args to be a tuple, got {type(args).__name__}. For one "
            "argument write args=(value,)."
        )
    with _lock:
        queue = _closures.setdefault(_XLAC._xla_get_default_device(), collections.deque())
        queue.append((closure, tuple(args), run_async))


@contextmanager
def closures_kept() -> Iterator[None]:
    """A block after which the closures that wait are those of before."""
    with _lock:
        kept = {device: queue.copy() for device, queue in _closures.items()}
    try:
        yield
    finally:
        with _lock:
            _closures.clear()
            _closures.update(kept)


def run_closures(device: str) -> None:
    """Runs the device's closures in order. One that raises ends it; those after it stay queued."""
    background = _background.get(device)
    if background is not None:
        background.raise_errors()
    if device in _closures:  # where the barrier's program cannot be had, they stay queued
        _XLAC._xla_finish_deferred_runs()
    while True:
        with _lock:
            queue = _closures.get(device)
            if not queue:
                return
            closure, args, run_async = queue.popleft()
            if not queue:
                del _closures[device]
            if run_async and device not in _background:
                _background[device] = _Background(device)
        if run_async:
            _background[device].submit(closure, args)
        else:
            closure(*args)


def wait_for_closures(devices: list[str]) -> None:
    """Waits for the asynchronous closures of devices, all if empty, and raises what they raised."""
    for device, background in list(_background.items()):
        if not devices or device in devices:
            background.wait()
            background.raise_errors()


class _Background:
    """Runs the asynchronous closures of a device in order, on one thread.

    The interpreter's exit waits for them (`concurrent.futures` sees to it).
    """

    def __init__(self, device: str):
        name = f"step closures of {device}"
        self._executor = ThreadPoolExecutor(1, name, initializer=self._start, initargs=(device,))
        self._last: Future | None = None
        self._thread: int | None = None
        self._errors: collections.deque[BaseException] = collections.deque()
        atexit.register(self._print_errors)  # no barrier is left to raise them

    def _start(self, device: str) -> None:
        self._thread = threading.get_ident()
        _XLAC._xla_set_default_device(device)

    def submit(self, closure: Callable, args: tuple) -> None:
        self._last = self._executor.submit(self._run, closure, args)

    def _run(self, closure: Callable, args: tuple) -> None:
        try:
            closure(*args)
        except BaseException as error:
            self._errors.append(error)

    def wait(self) -> None:
        if self._last is not None and threading.get_ident() != self._thread:
            self._last.result()

    def _print_errors(self) -> None:
        for error in self._errors:
            traceback.print_exception(error)

    def raise_errors(self) -> None:
        if self._errors and threading.get_ident() != self._thread:
            raise self._errors.popleft()
