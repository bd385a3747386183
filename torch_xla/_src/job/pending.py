"""Exchanges that were recorded and wait for a barrier, while another process waits for them.

A process may record an exchange and then do something else for long: read files, wait for others
by means that nobody here knows of. When others wait and it records nothing, it launches them.
"""

from __future__ import annotations

import threading
import time

from torch_xla import _XLAC

# Seconds in which a process counts nothing, neither calls that it records nor programs.
_IDLE = 1.0


class Pending:
    """Those of this process."""

    def __init__(self) -> None:
        self._counted, self._since = -1, 0.0
        self._notes: list[tuple[str, str, float]] = []
        self._launching: threading.Thread | None = None

    def look(self) -> None:
        """To be called about once a second."""
        self._notes, _, counted = _XLAC._xla_doing()
        if counted != self._counted:
            self._counted, self._since = counted, time.monotonic()

    def launch_if_idle(self) -> None:
        """Launches them where nothing was counted for a while; never waits."""
        self.look()
        compiles = any(work == "compiles" for work, _, _ in self._notes)
        if time.monotonic() - self._since < _IDLE or self._is_launching() or compiles:
            return
        self._launching = threading.Thread(
            target=_launch, name="torch_xla pending exchanges", daemon=True
        )
        self._launching.start()

    def join(self, timeout: float) -> None:
        """Waits for a launch: the interpreter must not end meanwhile."""
        if self._launching is not None:
            self._launching.join(timeout)

    def _is_launching(self) -> bool:
        return self._launching is not None and self._launching.is_alive()


def _launch() -> None:
    try:
        _XLAC._xla_launch_exchanges()
    except RuntimeError:
        pass  # the thread that recorded them meets the error, too
