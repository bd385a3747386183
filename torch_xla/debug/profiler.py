"""Profiles of a running program, for TensorBoard, `xprof` and Perfetto.

    >>> import torch_xla.debug.profiler as xp
    >>> xp.start_trace("/tmp/log")
    >>> for step in range(5):
    ...     with xp.StepTrace("train", step_num=step):
    ...         train_step()
    >>> xp.stop_trace()

They hold what each thread of the host did (`sync`, `lower`, `compile`, `launch`, uploads, reads and
waits, the kernels of PyTorch that run inside programs, and the program's own traces) and when each
device ran which program; where the plugin makes a profile of its devices itself, that is in it too,
and on the CPU the loops that XLA has compiled, by samples of its threads. Without a recording a
trace costs next to nothing. Profiles need the packages `protobuf`, on the CPU `pyelftools` and, to
be asked for from outside, `grpcio`: `pip install torch_xla[profiler]`.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from torch_xla import _XLAC
from torch_xla._internal.jax_workarounds import maybe_get_jax  # noqa: F401
from torch_xla._src.functions.step import barrier
from torch_xla._src.profile import job as profile_job
from torch_xla._src.profile import profiler
from torch_xla._src.profile import spaces as profile_spaces

F = TypeVar("F", bound=Callable[..., Any])

_TRACER_MARKED_STEP: bool = False


def set_tracer_marked_step(value: bool) -> None:
    """Says whether a `StepTrace` marks the steps of this program."""
    global _TRACER_MARKED_STEP
    _TRACER_MARKED_STEP = value


def get_tracer_marked_step() -> bool:
    """True if a `StepTrace` has been entered, whose end is a barrier."""
    return _TRACER_MARKED_STEP


class Trace(_XLAC._TraceMe):
    """A part of the program, as an event of profiles.

    Args:
        name: The event's.
        kwargs: Details, shown as texts.

    Example:
        >>> with xp.Trace("forward", rows=64):
        ...     loss = model(batch)
    """

    def __init__(self, name: str, **kwargs: Any):
        super().__init__(name, **kwargs)
        self.name = name


class StepTrace(Trace):
    """A step of a loop, as an event by which profiles count steps. Its end is a barrier, as
    `torch_xla.sync()` is.

    Args:
        name: The event's.
        kwargs: Details; `step_num` is the step's number.
    """

    def __init__(self, name: str, **kwargs: Any):
        super().__init__(name, _r=1, **kwargs)

    def __enter__(self) -> StepTrace:
        set_tracer_marked_step(True)
        super().__enter__()
        return self

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        try:
            if type is None:  # after an exception, the program decides what becomes of its step
                barrier("", "torch_xla.sync when exiting a profiler StepTrace region")
        finally:
            super().__exit__(type, value, traceback)


def trace_me(scope: str) -> Callable[[F], F]:
    """A decorator: each call of the function is a `Trace` of this name."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with Trace(scope):
                return function(*args, **kwargs)

        return traced  # type: ignore[return-value]

    return decorate


class _ProfileState:
    """The recording that `start_trace` began."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        self.profile_session: profiler.TslProfilerSessionWrapper | None = None
        self.log_dir: str | os.PathLike[str] | None = None
        self.run: str | None = None


_profile_state = _ProfileState()


def start_trace(log_dir: str | os.PathLike[str]) -> None:
    """Begins to record a profile of this process. Ranks of a job that record at the same time have
    one folder.

    Args:
        log_dir: A log directory of TensorBoard, for `stop_trace`.

    Raises:
        RuntimeError: One is being recorded.
        ImportError: The package `protobuf` is not there.
    """
    with _profile_state.lock:
        if _profile_state.profile_session is not None:
            raise RuntimeError("Only one profile may be run at a time. Call stop_trace() first.")
        session = profiler.TslProfilerSessionWrapper()
        try:
            _profile_state.run = profile_job.begin(profile_spaces.run_name())
        except BaseException:
            session.end()
            raise
        _profile_state.profile_session = session
        _profile_state.log_dir = log_dir


def stop_trace() -> None:
    """Ends it and writes `HOST.xplane.pb` and `HOST.trace.json` to `plugins/profile/<time>` below
    the log directory. Waits for what the devices are running.

    In a job the files are `HOST_rankN.xplane.pb` and `HOST_rankN.trace.json`, `<time>` is that of
    the rank that began first, and the rank that ends last writes all to `job.trace.json`.

    Raises:
        RuntimeError: None is being recorded.
    """
    with _profile_state.lock:
        session = _profile_state.profile_session
        if session is None:
            raise RuntimeError("No profile started. Call start_trace(log_dir) first.")
        _XLAC._xla_wait_device_ops()
        space = session.end()
        assert _profile_state.log_dir is not None  # as there is a session
        folder = profile_spaces.run_folder(_profile_state.log_dir, _profile_state.run)
        _profile_state.reset()
    try:
        profile_spaces.write(space, folder, profile_spaces.host_name())
    finally:
        profile_job.end(folder)


def start_server(
    port: int, only_on_master: bool = True, host: str = "localhost"
) -> profiler.ProfilerServer | None:
    """Starts a server that records a profile of this process when TensorBoard's capture button, or
    `trace`, asks for one.

    Args:
        port: The port; 0 takes a free one, which the server's `port` tells.
        only_on_master: Whether the first process of several alone starts one.
        host: The address. Whoever reaches it can have profiles written to a folder of their choice:
            "0.0.0.0" lets other machines in.

    Returns:
        The server, which ends when it is let go, after what it is recording is written. Where this
        process has one at the port already, that one. None in a process that starts none.

    Raises:
        RuntimeError: The port is taken, or is none.
        ImportError: `grpcio` or `protobuf` is not there.
    """
    from torch_xla.core import xla_model

    if only_on_master and not xla_model.is_master_ordinal():
        return None
    return profiler.server_at(port, host)


def trace(
    service_addr: str,
    logdir: str,
    duration_ms: int = 1000,
    num_tracing_attempts: int = 3,
    host_tracer_level: int = 2,
    device_tracer_level: int = 1,
    delay_ms: int = 0,
    timeout_s: int = 120,
    interval_s: int = 5,
) -> None:
    """Asks servers of `start_server` for a profile, and returns when it is written.

    Args:
        service_addr: Their addresses, with commas between: "localhost:9012".
        logdir: A log directory of TensorBoard, to which the servers can write.
        duration_ms: How long they record.
        num_tracing_attempts: How often they are asked while nothing happens on xla.
        host_tracer_level, device_tracer_level: How much the plugin's own profile tells, where the
            plugin makes one. What this project records is the same at each level.
        delay_ms: How long to wait before.
        timeout_s: How long servers that are not there yet, or busy, are asked again. A warning says
            so at once.
        interval_s: How long to wait in between.

    Raises:
        RuntimeError: A server does not answer or cannot write, or nothing happened on xla.
        ImportError: `grpcio` or `protobuf` is not there.
    """
    options = {
        "host_tracer_level": host_tracer_level,
        "device_tracer_level": device_tracer_level,
        "delay_ms": delay_ms,
    }
    profiler.trace(
        service_addr, logdir, duration_ms, num_tracing_attempts, timeout_s, interval_s, options
    )


def trace_detached(*args: Any, **kwargs: Any) -> threading.Thread:
    """`trace` with these arguments, on a thread of its own: the program that calls it may be what
    it records.

    Returns:
        The thread. It prints what `trace` raises.
    """
    thread = threading.Thread(target=trace, args=args, kwargs=kwargs, name="trace", daemon=True)
    thread.start()
    return thread
