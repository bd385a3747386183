"""Ways to run closures: on a thread of their own, or as a subclass decides.

`xm.add_step_closure` runs closures after a step by itself and needs none of these.
"""

from __future__ import annotations

import abc
import collections
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor


class ClosureHandler(abc.ABC):
    """Runs closures."""

    @abc.abstractmethod
    def run(self, closure: Callable[[], None]) -> None:
        """Runs one closure, now or later."""

    def run_all(self, closures: Iterable[Callable[[], None]]) -> None:
        """Runs closures in order."""
        for closure in closures:
            self.run(closure)


class AsyncClosureHandler(ClosureHandler):
    """Runs closures in order on a thread, which starts with the first.

    What a closure raises, the next call of `run` raises.

    Args:
        max_queue_size: The most closures that wait; who adds another waits for room.
    """

    def __init__(self, max_queue_size: int = 100):
        super().__init__()
        self._room = threading.BoundedSemaphore(max_queue_size)
        self._thread = ThreadPoolExecutor(1, "torch_xla closures")  # the interpreter waits for it
        self._errors: collections.deque[BaseException] = collections.deque()

    def start_event_loop(self) -> None:
        """Starts the thread if it does not run; `run` does so too."""
        self._thread.submit(int)

    def run(self, closure: Callable[[], None]) -> None:
        """Queues a closure."""
        if self._errors:
            raise self._errors.popleft()
        self._room.acquire()
        self._thread.submit(self._run, closure)

    def _run(self, closure: Callable[[], None]) -> None:
        self._room.release()
        try:
            closure()
        except BaseException as error:
            self._errors.append(error)
