"""Bounded queues between threads, which end when they are closed."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Hashable
from typing import Any


class QueueBase:
    """The common part of this module's queues.

    Args:
        maxsize: The most items that wait; who puts another waits for room.
    """

    def __init__(self, maxsize: int = 1024):
        self._maxsize = maxsize
        self._changed = threading.Condition()
        self._closed = False
        self._write_closed = False

    def max_size(self) -> int:
        """The most items that wait."""
        return self._maxsize

    def close(self) -> None:
        """Ends the queue: what waits is dropped, `put` and `get` return at once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close_write(self) -> None:
        """Ends writing: `get` returns what waits, and None after that."""
        with self._changed:
            self._write_closed = True
            self._changed.notify_all()

    def _put(self, add: Callable[[], None], count: Callable[[], int]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: count() < self._maxsize or self._ended())
            if self._write_closed and not self._closed:
                raise RuntimeError("put: expected an open queue, got one after close_write().")
            if not self._closed:
                add()
                self._changed.notify_all()

    def _get(self, items: collections.deque[Any]) -> Any:
        with self._changed:
            self._changed.wait_for(lambda: items or self._ended())
            if self._closed or not items:
                return None
            item = items.popleft()
            self._changed.notify_all()
            return item

    def _ended(self) -> bool:
        return self._closed or self._write_closed


class Queue(QueueBase):
    """Items in order, from threads that put to threads that get."""

    def __init__(self, maxsize: int = 1024):
        super().__init__(maxsize)
        self._items: collections.deque[Any] = collections.deque()

    def put(self, item: Any) -> None:
        """Adds an item; waits while the queue is full.

        Raises:
            RuntimeError: After `close_write`.
        """
        self._put(lambda: self._items.append(item), lambda: len(self._items))

    def get(self) -> Any:
        """Takes the first item; waits for one. None once there will be no more."""
        return self._get(self._items)


class KeydQueue(QueueBase):
    """A queue for each key. The bound is that of all together."""

    def __init__(self, maxsize: int = 1024):
        super().__init__(maxsize)
        self._items: dict[Hashable, collections.deque[Any]] = collections.defaultdict(
            collections.deque
        )

    def put(self, key: Hashable, item: Any) -> None:
        """Adds an item to a key's queue; waits while all hold `maxsize`.

        Raises:
            RuntimeError: After `close_write`.
        """
        self._put(
            lambda: self._items[key].append(item),
            lambda: sum(len(items) for items in self._items.values()),
        )

    def get(self, key: Hashable) -> Any:
        """Takes the first item of a key; waits for one. None once there will be no more."""
        with self._changed:
            items = self._items[key]
        return self._get(items)
