"""The watch that each process of a job keeps: when one is lost, the others end within seconds.

A thread keeps a connection to rank 0 (`judge.py`) and sends a word about once a second. Who is lost
first is the job's verdict. Each process then prints it and raises `JobEnded` in its main thread,
unless that waits outside of Python. One whose main thread is not over after a while ends at once:
it may wait in Gloo for a process that is no more, and no exception of Python's gets there.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import TracebackType

from torch_xla import _XLAC
from torch_xla._src.job import compiles, place, states
from torch_xla._src.job import store as _store
from torch_xla._src.job.judge import Judge
from torch_xla._src.job.messages import LOST, Lines, Process
from torch_xla._src.job.pending import Pending

# The exit status of a process that ends since another was lost.
EXIT_STATUS = 75
# Seconds that the main thread has for its `finally` and `with` blocks.
_TO_END = 1.0
# Seconds for threads to meet rank 0, or to notice that this process ends.
_TO_LEAVE = 5.0
# Seconds in which rank 0 answers who failed first.
_TO_ANSWER = 2.5
# Seconds in which it tells what all do.
_TO_TELL = 2.0
# Seconds for which one has waited before others are asked to launch what they have recorded.
_TO_ASK = 0.5
# Errors that another process's end may have caused.
_ECHO = re.compile(
    r"gloo|connection (closed|reset|refused|was)|broken pipe|socket|recvvalue|timed? ?out", re.I
)


class JobEnded(RuntimeError):
    """Another process of the job was lost."""


_lock = threading.Lock()
_watch: Watch | None = None


def start(parent: int | None = None) -> None:
    """Begins the watch of this process, once. A job of one process has none.

    Args:
        parent: The number of the process that is to live as long as this one does.
    """
    global _watch
    if place.world_size() == 1:
        return
    with _lock:
        if _watch is None or _watch.process.pid != os.getpid():
            _watch = Watch(parent)
            _watch.start()


def report(error: BaseException) -> bool:
    """Tells the others of the error that ends this process; True if another failed before it."""
    return _watch is not None and _watch.is_here() and _watch.report(error)


def tell_job() -> str:
    """A line for each process of the job: what it does now. Empty where that is not known."""
    return _watch.tell_job() if _watch is not None and _watch.is_here() else ""


def leave(reason: str = "") -> None:
    """Says that this process ends as it should, or by something else than an error."""
    if _watch is not None and _watch.is_here():
        _watch.leave(reason)


class Watch(threading.Thread):
    """The thread of one process."""

    def __init__(self, parent: int | None = None):
        super().__init__(name="torch_xla watch", daemon=True)
        self.process = Process.here(place.rank())
        self._limit = _limit()
        self._tick = min(1.0, self._limit / 8) if self._limit else 1.0
        started_by = place.launcher() in ("torchrun", "xmp.spawn")
        self._parent = parent or (os.getppid() if started_by else None)
        self._finder = threading.Thread(target=self._find, name="torch_xla finder", daemon=True)
        self._found: tuple[int, str] | RuntimeError | None = None
        self._main = threading.main_thread()
        self._lines: Lines | None = None
        self._judge: Judge | None = None
        self._pending = Pending()
        self._rank_0: Process | None = None
        self._has_verdict = threading.Event()
        self._table = ""  # what all do
        self._has_table = threading.Event()
        self._lost: Process | None = None
        self._is_leaving = False
        self._turn = threading.Lock()
        self._is_failing = False  # the main thread ends by an error of its own
        self._farewell = "has ended"
        self._old_hook = sys.excepthook
        sys.excepthook = self._hook
        os.register_at_fork(after_in_child=self._close)

    def is_here(self) -> bool:
        """False in a process that was forked from the one that is watched."""
        return self.process.pid == os.getpid()

    def start(self) -> None:
        """Starts it, and the thread that looks for rank 0."""
        compiles.look_for_store()
        self._finder.start()
        super().start()

    def run(self) -> None:
        lines = self._meet()
        heard = last = next_beat = time.monotonic()
        while not self._is_leaving:
            if lines is None:  # rank 0 has ended
                time.sleep(self._tick)
            elif select.select([lines.connection], [], [], max(0.0, next_beat - last))[0]:
                messages, is_over = lines.receive()
                heard = time.monotonic()
                for message in messages:
                    if "welcome" in message:
                        self._rank_0 = Process(*message["welcome"])
                    elif message.get("beat", 0) > _TO_ASK:
                        self._pending.launch_if_idle()
                    elif "table" in message:
                        self._hear_table(message["table"], message["waited"])
                    elif "verdict" in message:
                        self._end(Process(*message["process"]), message["verdict"])
                    elif "left" in message:
                        is_over = True
                        self._rank_0 = None
                        compiles.go_alone()  # it may have kept the store
                if is_over:
                    if self._rank_0 is not None:
                        self._end(self._rank_0, LOST)
                    lines = self._lines = None
            now = time.monotonic()
            if now - last > self._tick + 1:
                heard = now  # this process stood still
            last = now
            if lines is not None:
                if now >= next_beat:  # not at each message: each answers one
                    next_beat = now + self._tick
                    lines.send({"beat": states.here(self._main)})
                    self._pending.look()
                if self._rank_0 is not None and 0 < self._limit < now - heard:
                    if text := self._rank_0.silence(now - heard, self._limit):
                        self._end(self._rank_0, text)
            self._look_for_parent()

    def report(self, error: BaseException) -> bool:
        """As the function of this name."""
        with self._turn:
            self._is_failing = True
            _raise_in(threading.current_thread(), None)
        until = time.monotonic() + _TO_LEAVE
        while self._lines is None and self.is_alive() and time.monotonic() < until:
            time.sleep(0.1)  # it has just begun
        lines = self._lines
        if lines is not None and not isinstance(error, JobEnded) and not self._has_verdict.is_set():
            text = traceback.format_exception_only(error)[-1].strip()
            lines.send({"error": text, "echo": bool(_ECHO.search(text))})
            self._has_verdict.wait(_TO_ANSWER)
        return self._lost is not None and self._lost.rank != self.process.rank

    def tell_job(self) -> str:
        """As the function of this name."""
        lines = self._lines
        if lines is None:
            return ""
        self._has_table.clear()
        lines.send({"ask": True})
        self._has_table.wait(_TO_TELL)
        return f"The processes of the job:\n{self._table}" if self._table else ""

    def _hear_table(self, table: str, waited: float) -> None:
        """Prints what the judge tells unasked, once on each host."""
        self._table = table
        self._has_table.set()
        if waited and place.local_rank() == 0:
            _print(f"torch_xla: a process has waited for others for {waited:.0f} s:\n{table}")

    def leave(self, reason: str) -> None:
        """As the function of this name."""
        self._is_leaving = True
        # The interpreter must not end while that thread is in C++.
        if self._finder.is_alive():
            self._finder.join(_TO_LEAVE)
        self._pending.join(_TO_LEAVE)
        if self._lines is not None:
            self._lines.send({"bye": reason or self._farewell})
        if self._judge is not None and self._judge.is_alive():
            self._judge.stop()
            self._judge.join(_TO_END)

    def _meet(self) -> Lines | None:
        """Connects to rank 0; None if it has ended by then, or this process ends."""
        while self._finder.is_alive() and not self._is_leaving:
            self._finder.join(0.1)
            self._look_for_parent()
        if isinstance(self._found, RuntimeError):
            self._end(None, f"the job's store is gone ({self._found})")
        if not isinstance(self._found, tuple):
            return None
        port, token = self._found
        host = "127.0.0.1" if place.on_one_host() or self._judge else place.master_address()
        try:
            lines = Lines(socket.create_connection((host, port), timeout=30))
        except ConnectionRefusedError:
            return None
        except OSError as error:
            _print(
                f"torch_xla: rank {self.process.rank} cannot reach rank 0 at {host}:{port}: "
                f"{error}. It will not hear of processes that are lost."
            )
            return None
        lines.send({"hello": list(self.process), "token": token})
        self._lines = lines
        return lines

    def _find(self) -> None:
        """Runs on a thread of its own: PyTorch's store takes long to notice that nobody answers."""
        try:
            self._found = self._find_judge()
        except RuntimeError as error:
            self._found = error
        if not isinstance(self._found, tuple):
            compiles.go_alone()

    def _find_judge(self) -> tuple[int, str] | None:
        """The port of rank 0, and the word that it expects; None if this process ends."""
        if self.process.rank == 0:
            _store.store("watch")  # it may be rank 0 that keeps it
        if not _store.answers():
            compiles.go_alone()
            if not self._wait_for(_store.answers):
                return None
        compiles.share()
        store = _store.store("watch")
        if self.process.rank == 0:
            token = secrets.token_hex(16)
            here = "127.0.0.1" if place.on_one_host() else ""
            self._judge = Judge(here, token, self._tick, self._limit, _patience())
            self._judge.start()
            store.set("watch", f"{self._judge.port} {token}")
        if not self._wait_for(lambda: store.check(["watch"])):
            return None
        port, token = store.get("watch").decode().split()
        return int(port), token

    def _wait_for(self, condition: Callable[[], bool]) -> bool:
        """False if this process ends before."""
        while not self._is_leaving:
            if condition():
                return True
            time.sleep(0.1)
        return False

    def _look_for_parent(self) -> None:
        if self._parent is not None and os.getppid() != self._parent:
            self._end(None, f"{place.launcher()}, which started the job, has ended")

    def _end(self, lost: Process | None, text: str) -> None:
        """Ends this process, unless it is the lost one: then it ends by itself."""
        self._lost = lost
        self._has_verdict.set()
        if self._is_leaving or (lost is not None and lost.rank == self.process.rank):
            return
        who = "" if lost is None else f"{lost} "
        line = states.line_of(self._main)
        _print(
            f"torch_xla: {who}{text.rstrip('.')}. Rank {self.process.rank}, at {line}, ends, too."
        )
        if lost is not None and lost.is_stopped():
            _kill(lost)  # it hears nothing of this
        if signal.getsignal(signal.SIGALRM) == signal.SIG_DFL:
            # No thread of Python runs while the interpreter ends, or C code keeps its lock.
            signal.setitimer(signal.ITIMER_REAL, 3 * _TO_END)
        if _runs(self._main):
            with self._turn:
                if not self._is_failing:
                    _raise_in(self._main, JobEnded)
        self._main.join(_TO_END)
        time.sleep(0 if self._main.is_alive() else _TO_END)  # what runs at exit has as long
        _flush()
        os._exit(EXIT_STATUS)

    def _hook(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if self.is_here():
            if issubclass(kind, JobEnded):
                return  # all is said
            if issubclass(kind, KeyboardInterrupt):
                self._farewell = "has ended by KeyboardInterrupt"
            else:
                self.report(error)
        self._old_hook(kind, error, trace)

    def _close(self) -> None:
        """In a forked child: a connection ends when nobody has it any more."""
        if self._lines is not None:
            self._lines.close()
        if self._judge is not None:
            self._judge.close()


def _limit() -> int:
    limit = _XLAC._xla_flag("XLA_JOB_HEARTBEAT_SECONDS")
    if limit < 0:
        raise ValueError(
            f"XLA_JOB_HEARTBEAT_SECONDS: expected a number of seconds, or 0 for any, got {limit}."
        )
    return limit


def _patience() -> int:
    return max(0, _XLAC._xla_flag("XLA_JOB_WAIT_SECONDS"))


def _print(line: str) -> None:
    """Writes past Python's buffers, whose locks the main thread may hold."""
    os.write(2, (line + "\n").encode())


def _kill(process: Process) -> None:
    try:
        os.kill(process.pid, signal.SIGKILL)
    except OSError:
        pass  # it has gone, or is somebody else's


def _runs(thread: threading.Thread) -> bool:
    """False if it is in a call of C, which raises by itself if at all."""
    before = _position(thread)
    time.sleep(0.05)
    return _position(thread) != before


def _position(thread: threading.Thread) -> tuple[int, int] | None:
    frame = sys._current_frames().get(thread.ident or 0)
    return None if frame is None else (id(frame), frame.f_lasti)


def _raise_in(thread: threading.Thread, kind: type[BaseException] | None) -> None:
    """Has a thread raise; None takes back what it has not raised yet."""
    ident = ctypes.c_ulong(thread.ident or 0)
    what = None if kind is None else ctypes.py_object(kind)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, what)


def _flush() -> None:
    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()

    flushing = threading.Thread(target=flush, daemon=True)
    flushing.start()
    flushing.join(0.3)
