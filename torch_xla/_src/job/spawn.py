"""Starting the processes of a job on this host: what `xmp.spawn` and `torch_xla.launch` do."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import connection
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.multiprocessing import (
    ProcessContext,
    ProcessExitedException,
    ProcessRaisedException,
)

from torch_xla import _XLAC
from torch_xla._src import ending
from torch_xla._src.device import plugins
from torch_xla._src.job import place, store, watch

# Seconds that the others have to end when one has failed, then after SIGTERM.
_TO_END = 3.0
# As long as a job runs its store has to.
_running: set[Context] = set()


def device_count() -> int:
    """The number of processes of this host, one for each device. No client is created for it."""
    if _XLAC._xla_flag("XLA_USE_SPMD") or _XLAC._xla_is_spmd():
        return 1
    if _XLAC._xla_is_initialized():
        return _XLAC._xla_num_devices()
    return plugins.find().plugin.physical_chip_count()


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    nprocs: int | None,
    join: bool,
    daemon: bool,
    start_method: str,
) -> Context | None:
    """As `xmp.spawn`, which documents it."""
    if place.world_size() > 1 and nprocs is None:
        watch.start()
        fn(place.rank(), *args)  # a launcher has started the processes
        return None
    count = device_count() if nprocs is None else nprocs
    if count == 1:
        fn(place.rank(), *args)
        return None
    if nprocs is not None and nprocs != device_count():
        raise ValueError(
            f"xmp.spawn: Unsupported nprocs ({nprocs}), expected 1, or None for all devices, "
            f"{device_count()}. Set CPU_NUM_DEVICES, or the variable of another plugin, for fewer."
        )
    if _XLAC._xla_is_initialized():
        raise RuntimeError(
            "xmp.spawn: Runtime is already initialized. Do not use the XLA device before calling "
            "xmp.spawn: the processes that it starts cannot share it. Move what uses a device into "
            "the function; in a notebook, restart the kernel first."
        )
    context = Context(fn, args, count, daemon, start_method)
    if not join:
        return context
    while not context.join():
        pass
    return None


class Context(ProcessContext):
    """The processes of a job that were started."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        count: int,
        daemon: bool,
        start_method: str,
    ):
        start: Any = multiprocessing.get_context(start_method)
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        port = listener.getsockname()[1]
        self._reserved = _reserved_port()
        processes, error_files = [], []
        try:
            for rank in range(count):
                variables = self._variables(rank, count, port)
                error_files.append(_name_of_file())
                parent = None if start_method == "forkserver" else os.getpid()
                about = _About(rank, variables, error_files[-1], parent, start_method)
                inherited = [listener, self._reserved] if start_method == "fork" else []
                process = start.Process(
                    target=_run, args=(fn, args, about, inherited), daemon=daemon
                )
                with _environment(variables):
                    process.start()
                processes.append(process)
        except BaseException:
            super().__init__(processes, error_files)
            self._end(0)
            listener.close()
            raise
        super().__init__(processes, error_files)
        # After the forks, since it has a thread. Who comes earlier waits at the socket.
        shared = dist.TCPStore(
            "127.0.0.1",
            port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        self.store = dist.PrefixStore(store.PREFIX, shared)  # as the processes see it
        _running.add(self)

    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Waits for processes to end, at most `timeout` seconds; call it until it is true.

        Args:
            timeout: Seconds; without it until one has ended.
            grace_period: The seconds that the others have when one has failed.

        Returns:
            True if all have ended.

        Raises:
            ProcessRaisedException: One has raised; the text has its traceback.
            ProcessExitedException: One has ended by a signal, or with another status than 0.
        """
        try:
            ready = connection.wait(list(self.sentinels), timeout) if self.sentinels else []
            for sentinel in ready:
                process = self.processes[self.sentinels.pop(sentinel)]
                process.join()
                if process.exitcode != 0:
                    self._end(_TO_END if grace_period is None else grace_period)
                    raise self._error()
        except BaseException:
            self._end(0)
            self._forget()
            raise
        if not self.sentinels:
            self._forget()
        return not self.sentinels

    def _end(self, grace_period: float) -> None:
        """Ends those that still run: by themselves, by SIGTERM, by SIGKILL."""
        for send in ("", "terminate", "kill"):
            alive = [process for process in self.processes if process.is_alive()]
            for process in alive if send else ():
                getattr(process, send)()
            until = time.monotonic() + (_TO_END if send else grace_period)
            for process in alive:
                process.join(max(0, until - time.monotonic()))
        self.sentinels.clear()

    def _error(self) -> Exception:
        """Why the job has failed: of the processes that failed by themselves, the first."""
        failed = [i for i, process in enumerate(self.processes) if process.exitcode]
        raised = [i for i in failed if os.path.exists(self.error_files[i])]
        if raised:
            first = min(raised, key=lambda i: os.stat(self.error_files[i]).st_mtime_ns)
            with open(self.error_files[first], "rb") as file:
                trace = pickle.load(file)
            text = f"\n\n-- Process {first} terminated with the following error:\n{trace}"
            return ProcessRaisedException(text, first, self.processes[first].pid)
        own = [i for i in failed if self.processes[i].exitcode not in _ENDED_BY_OTHERS] or failed
        process, code = self.processes[own[0]], self.processes[own[0]].exitcode
        name = signal.Signals(-code).name if code < 0 else None
        text = f"process {own[0]} terminated with " + (
            f"signal {name}" if name else f"exit code {code}"
        )
        return ProcessExitedException(text, own[0], process.pid, code, name)

    def _forget(self) -> None:
        for file in self.error_files:
            if os.path.exists(file):
                os.unlink(file)
        self._reserved.close()
        _running.discard(self)

    def _variables(self, rank: int, count: int, port: int) -> dict[str, str]:
        """Those that torchrun sets, and where our store is."""
        return {
            "RANK": str(rank),
            "WORLD_SIZE": str(count),
            "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(count),
            "GROUP_RANK": "0",
            "MASTER_ADDR": os.environ.get("MASTER_ADDR") or "127.0.0.1",
            "MASTER_PORT": os.environ.get("MASTER_PORT") or str(self._reserved.getsockname()[1]),
            "XLA_JOB_STORE": f"127.0.0.1:{port}",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "CPU_NUM_DEVICES": "1",
        }


class _About(NamedTuple):
    """A process is told this."""

    rank: int
    variables: dict[str, str]
    error_file: str
    parent: int | None  # whose end it does not outlive; without it who has forked it
    start_method: str


_ENDED_BY_OTHERS = (watch.EXIT_STATUS, -signal.SIGTERM, -signal.SIGALRM)


def _run(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    about: _About,
    inherited: list[socket.socket],
) -> None:
    """A process of the job."""
    os.environ.update(about.variables)  # a fork server has none of them
    for held in inherited:
        held.close()
    try:
        watch.start(about.parent)
        fn(about.rank, *args)
        if about.start_method != "spawn":
            ending.finish()  # such a process ends without what runs at exit
    except KeyboardInterrupt:
        watch.leave("has ended by KeyboardInterrupt")
        sys.exit(128 + signal.SIGINT)
    except watch.JobEnded:
        sys.exit(watch.EXIT_STATUS)
    except Exception as error:
        trace = traceback.format_exc()
        if watch.report(error):
            print(trace, file=sys.stderr, flush=True)
            sys.exit(watch.EXIT_STATUS)
        with open(about.error_file, "wb") as file:
            pickle.dump(trace, file)
        sys.exit(1)


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """The variables are set for what is started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _reserved_port() -> socket.socket:
    """A bound socket: nobody else gets its port while it is open, but who is told may listen."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


def _name_of_file() -> str:
    """A name in the temporary folder, of no file yet."""
    handle, name = tempfile.mkstemp(prefix="torch_xla-error-")
    os.close(handle)
    os.unlink(name)
    return name
