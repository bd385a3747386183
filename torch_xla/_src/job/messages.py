"""Watches of a job's processes send each other messages: JSON in lines, over TCP."""

from __future__ import annotations

import json
import os
import socket
from typing import Any, NamedTuple

Message = dict[str, Any]

LOST = "was killed, crashed or cut off: its connection ended"


class Process(NamedTuple):
    """A process of the job, as others find it on its host."""

    rank: int
    host: str
    pid: int
    started: str  # the kernel's text of the time, since numbers of processes come again

    @classmethod
    def here(cls, rank: int) -> Process:
        pid = os.getpid()
        return cls(rank, socket.gethostname(), pid, _stat(pid)[1])

    def is_stopped(self) -> bool:
        """True if it is on this host and a signal has stopped it."""
        return self._state() in ("T", "t")

    def silence(self, seconds: float, limit: float) -> str:
        """Says why it is lost, of which nothing is heard; empty if it may be well.

        One of this host that is not stopped may be in C code that keeps Python's lock: it gets ten
        times as long. No such thing can be seen of another host's.
        """
        if self.is_stopped():
            text, most = "is stopped", limit
        elif self._state():
            text, most = "does not answer", 10 * limit
        else:
            text, most = "is stopped or cut off", limit
        return f"{text}: nothing was heard of it for {seconds:.0f} s" if 0 < most < seconds else ""

    def _state(self) -> str:
        """The kernel's letter of its state; empty if it is gone or on another host."""
        state, started = _stat(self.pid) if self.host == socket.gethostname() else ("", "")
        return state if started == self.started else ""

    def __str__(self) -> str:
        return f"rank {self.rank} (process {self.pid} of {self.host})"


class Lines:
    """A connection on which messages come and go; it never blocks."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self._rest = b""

    def send(self, message: Message) -> None:
        """It is lost where the other side does not take it, since that is stopped or gone."""
        try:
            self.connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            pass

    def receive(self) -> tuple[list[Message], bool]:
        """The messages that are there by now, and whether none will come any more."""
        is_over = False
        while True:
            try:
                data = self.connection.recv(65536)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                is_over = True
                break
            self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines], is_over

    def close(self) -> None:
        self.connection.close()


def _stat(pid: int) -> tuple[str, str]:
    """The state and the start of a process of this host; empty where there is none."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return "", ""
    return fields[0], fields[19]
