"""The side of rank 0 in the watch over a job: it hears all processes, and says which was lost."""

from __future__ import annotations

import hmac
import selectors
import socket
import threading
import time

from torch_xla._src.job import states
from torch_xla._src.job.messages import LOST, Lines, Message, Process

# An error that another process's end may have caused waits as long for that end to be heard of.
_FOR_A_CAUSE = 1.0


class _Peer:
    def __init__(self, lines: Lines):
        self.lines = lines
        self.process: Process | None = None
        self.heard = time.monotonic()
        self.farewell: str | None = None  # what it said when it ended
        self.state: states.State | None = None

    def waited(self, now: float) -> float:
        """The seconds for which it has waited for others."""
        if self.state is None or self.state.waits == 0:
            return 0.0
        return self.state.waits + now - self.heard


class Judge(threading.Thread):
    """Listens for the watches of all ranks.

    The first process that is lost is the job's verdict, which all get: one that tells of its error,
    whose connection ends before it has said so, or of which nothing is heard for `limit` seconds.

    Args:
        host: The address at which the others find it.
        tick: The seconds between two messages of a process.
        limit: 0: silence is no reason.
        patience: Where one has waited for so many seconds all are told what each does, and again
            when it has waited twice as long. 0: never.
    """

    def __init__(self, host: str, token: str, tick: float, limit: float, patience: float):
        super().__init__(name="torch_xla judge", daemon=True)
        self._listener = socket.create_server((host, 0), backlog=1024)
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._own = Process.here(0)
        self._token, self._tick, self._limit = token, tick, limit
        self._patience = self._tells_at = patience
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake, self._waker = socket.socketpair()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._peers: dict[socket.socket, _Peer] = {}
        self._suspects: list[tuple[float, Process, str]] = []
        self._ended: list[tuple[Process, str]] = []
        self._verdict: Message | None = None
        self._judges = True
        self._is_over = False
        self._next_beat = 0.0

    def run(self) -> None:
        last = time.monotonic()
        while not self._is_over:
            for key, _ in self._selector.select(max(0.0, self._next_beat - last)):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._peers:
                    self._hear(self._peers[key.fileobj])
            now = time.monotonic()
            if now - last > self._tick + 1:  # this process stood still: the others may have, too
                for peer in self._peers.values():
                    peer.heard = now
            last = now
            self._look_around(now)
        self.close()

    def stop(self) -> None:
        """Ends it, after a word to all: rank 0 has ended as it should."""
        self._judges = False
        self._tell_all({"left": True})  # here: the process may end before the thread's turn comes
        self._is_over = True  # only now, since the thread then closes the connections
        try:
            self._waker.send(b".")
        except OSError:
            pass  # it has just seen it, and is closed

    def close(self) -> None:
        """Closes its connections, in this process."""
        for peer in self._peers.values():
            peer.lines.close()
        for held in (self._listener, self._wake, self._waker):
            held.close()
        self._selector.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        peer = _Peer(Lines(connection))
        self._peers[connection] = peer
        self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, peer: _Peer) -> None:
        messages, is_over = peer.lines.receive()
        peer.heard = time.monotonic()
        for message in messages:
            if "hello" in message:
                self._welcome(peer, message)
            elif peer.process is None:
                is_over = True  # whoever this is
            elif "beat" in message:
                peer.state = states.State(*message["beat"])
            elif "ask" in message:
                peer.lines.send({"table": self._table(), "waited": 0})
            elif "error" in message:
                self._suspects.append((peer.heard, peer.process, message["error"]))
                if not message["echo"]:
                    self._judge(peer.process, f"failed: {message['error']}")
            elif "bye" in message:
                peer.farewell = message["bye"]
                self._ended.append((peer.process, message["bye"]))
        if is_over:
            self._drop(peer)
            if peer.process is not None and peer.farewell is None:
                self._judge(peer.process, LOST)

    def _welcome(self, peer: _Peer, message: Message) -> None:
        process = Process(*message["hello"])
        known = any(p.process and p.process.rank == process.rank for p in self._peers.values())
        if not hmac.compare_digest(message["token"], self._token) or known:
            # A program that a process of the job has started inherits the variables of its rank.
            peer.lines.send({"left": True})
            self._drop(peer)
            return
        peer.process = process
        peer.lines.send({"welcome": list(self._own)})
        if self._verdict is not None:
            peer.lines.send(self._verdict)

    def _drop(self, peer: _Peer) -> None:
        self._selector.unregister(peer.lines.connection)
        del self._peers[peer.lines.connection]
        peer.lines.close()

    def _look_around(self, now: float) -> None:
        for peer in list(self._peers.values()):
            silent = now - peer.heard
            if peer.process and peer.farewell is None and 0 < self._limit < silent:
                if text := peer.process.silence(silent, self._limit):
                    self._judge(peer.process, text)
        for since, process, error in self._suspects:
            if self._ended:
                cause, farewell = self._ended[0]
                self._judge(cause, f"{farewell}, and then {process} failed: {error}")
            elif now - since > _FOR_A_CAUSE:
                self._judge(process, f"failed: {error}")
        if now >= self._next_beat:  # not at each message: each answers one
            self._next_beat = now + self._tick
            longest = max((peer.waited(now) for peer in self._peers.values()), default=0.0)
            self._tell_all({"beat": longest})
            self._tell_of_waits(longest)

    def _tell_of_waits(self, longest: float) -> None:
        if longest < self._patience:
            self._tells_at = self._patience
        elif 0 < self._tells_at <= longest:
            while self._tells_at <= longest:
                self._tells_at *= 2
            self._tell_all({"table": self._table(), "waited": longest})

    def _table(self) -> str:
        known = [(p.process.rank, p.state) for p in self._peers.values() if p.process and p.state]
        return states.table(known)

    def _judge(self, process: Process, text: str) -> None:
        if self._verdict is None and self._judges:
            self._verdict = {"verdict": text, "process": list(process)}
            self._tell_all(self._verdict)

    def _tell_all(self, message: Message) -> None:
        for peer in list(self._peers.values()):
            peer.lines.send(message)
