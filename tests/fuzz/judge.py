"""Runs programs on both devices in processes of their own: a crash or a hang is a difference."""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tests.fuzz.compare import Difference, difference
from tests.fuzz.program import Program, run

TIMEOUT = 120.0
OWN_FAULT = 70  # the exit status of a process in which the fuzzer failed, not a program


def examine(program: Program) -> Difference | None:
    """The first difference between the devices, in this process."""
    want = run(program, "cpu")
    return difference(program, run(program, "xla"), want)


class Child:
    """A forked process that yields results of `work`. Nothing on xla may have run here before."""

    def __init__(self, work: Callable[[], Iterator[Any]]):
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(read)
            status = 1
            try:
                with os.fdopen(write, "wb") as out:
                    for result in work():
                        pickle.dump(result, out)
                        out.flush()
                status = 0
            except BaseException:
                traceback.print_exc()
                status = OWN_FAULT
            finally:
                os._exit(status)  # what is at exit here belongs to the parent
        os.close(write)
        self._in = os.fdopen(read, "rb")
        self.heard = time.monotonic()

    def fileno(self) -> int:
        return self._in.fileno()

    def next(self) -> Any:
        """The next result; EOFError at the end, however it came."""
        result = pickle.load(self._in)
        self.heard = time.monotonic()
        return result

    def silent(self) -> bool:
        return time.monotonic() - self.heard > TIMEOUT

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        self._in.close()

    def end(self) -> str:
        """Waits for the process. How it ended, if not well."""
        if self.silent():
            self.stop()
            return f"hang: nothing for {TIMEOUT:.0f} s"
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._in.close()
        if status == OWN_FAULT:
            raise RuntimeError("The fuzzer itself failed; its traceback is above.")
        if status < 0:
            return f"crash: {signal.Signals(-status).name}"
        return f"crash: exit status {status}" if status else ""


def examine_apart(
    programs: Sequence[Program], before: Callable[[], None] = lambda: None
) -> Difference | None:
    """The difference of the last program after the others ran in the same, fresh process."""

    def work() -> Iterator[Any]:
        before()
        for program in programs[:-1]:
            examine(program)
        yield examine(programs[-1])

    child = Child(work)
    ready, _, _ = select.select([child], [], [], TIMEOUT)
    try:
        found = child.next() if ready else None
    except EOFError:
        found = None
    if not ready:
        child.heard = 0.0
    ended = child.end()
    return Difference(ended, None, "") if ended else found
