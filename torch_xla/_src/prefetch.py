"""Threads that read batches ahead and move them to devices.

One thread reads the batches of a loader, in its order. Others take them from there and move each to
its device: the i-th batch to device i modulo the number of devices. Each device's consumer receives
its batches in order, whatever the order in which transfers end. Both stores are bounded. An error
ends the stream where it happened: the batches before it are still delivered, then each consumer
gets the error.
"""

from __future__ import annotations

import collections
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any


class Prefetcher:
    """Reads a loader ahead, for one consumer a device.

    The iterator of the loader is made here, by the calling thread; the loader's thread runs it. If
    the last round over the devices is incomplete it is left out, so that all devices get equally
    many batches.

    Args:
        loader: Yields batches.
        transfers: For each device, the function that moves a batch to it.
        host_capacity: For each device, the most batches that wait for their transfer.
        device_capacity: For each device, the most batches that have been moved, or are being moved,
            and not consumed.
        transfer_threads: How many threads move batches, at least 1.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        transfers: list[Callable[[Any], Any]],
        host_capacity: int,
        device_capacity: int,
        transfer_threads: int,
    ):
        self._transfers = transfers
        self._devices = len(transfers)
        self._host_capacity = host_capacity * self._devices
        self._device_capacity = device_capacity * self._devices

        self._lock = threading.Lock()
        # One condition for each kind of waiter, so that a signal wakes those who can go on.
        self._host_has_room = threading.Condition(self._lock)
        self._work_is_there = threading.Condition(self._lock)
        self._batch_is_there = [threading.Condition(self._lock) for _ in transfers]
        # Batches are numbered in the loader's order.
        self._read_count = 0
        self._host: collections.deque[tuple[int, Any]] = collections.deque()
        self._done: dict[int, Any] = {}
        self._next = list(range(self._devices))  # for each device, the number that it gets next
        self._waiting: set[int] = set()  # the numbers that consumers wait for
        self._end: int | None = None  # the first number that does not exist
        # Why it ends there if that is an error, for each consumer that has not been told yet.
        self._errors: list[BaseException | None] = [None] * self._devices
        self._closed = False

        self._process = os.getpid()
        self._threads = [
            threading.Thread(target=self._read, args=(iter(loader),), name="torch_xla loader"),
            *(
                threading.Thread(target=self._transfer, name=f"torch_xla transfer {i}")
                for i in range(transfer_threads)
            ),
        ]
        for thread in self._threads:
            thread.daemon = True  # a loader that blocks for ever must not keep the interpreter
            thread.start()

    def next(self, device: int) -> Any:
        """The next batch of the device of this index; StopIteration after the last one."""
        with self._lock:
            number = self._next[device]
            while number not in self._done:
                if self._closed or (self._end is not None and number >= self._end):
                    error, self._errors[device] = self._errors[device], None
                    raise error or StopIteration
                self._waiting.add(number)
                self._host_has_room.notify()
                self._batch_is_there[device].wait()
                self._waiting.discard(number)
            self._next[device] += self._devices
            self._work_is_there.notify()
            return self._done.pop(number)

    def close(self, patience: float = 5.0) -> None:
        """Ends the threads and drops the batches that are left; consumers see the end.

        A thread that is inside the loader or a transfer ends after it.

        Args:
            patience: How many seconds to wait for the threads.
        """
        if os.getpid() != self._process:
            return  # a forked child has no such threads, and may have inherited a lock that is held
        with self._lock:
            self._closed = True
            self._host.clear()
            self._done.clear()
            self._wake_all()
        deadline = time.monotonic() + patience
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def _wake_all(self) -> None:
        for condition in (self._host_has_room, self._work_is_there, *self._batch_is_there):
            condition.notify_all()

    def _end_at(self, number: int, error: BaseException | None) -> None:
        """Lets the stream end before this number, unless it ends earlier."""
        with self._lock:
            if self._end is None or number < self._end:
                self._end = number
                self._errors = [error] * self._devices
            self._host = collections.deque(item for item in self._host if item[0] < self._end)
            self._wake_all()

    def _read(self, batches: Iterator[Any]) -> None:
        error = None
        try:
            round_: list[Any] = []
            for batch in batches:
                round_.append(batch)
                if len(round_) == self._devices:
                    if not self._offer(round_):
                        break
                    round_ = []
        except BaseException as e:  # the consumer's to handle, whatever it is
            error = e
        self._end_at(self._read_count, error)

    def _offer(self, round_: list[Any]) -> bool:
        """Stores a batch for each device, once there is room; False if nobody wants more."""
        with self._lock:
            # A consumer that waits for a batch which has not been read goes before the bound: the
            # store may be full of the others' batches.
            while (
                len(self._host) >= self._host_capacity
                and not any(number >= self._read_count for number in self._waiting)
                and not self._closed
                and self._end is None
            ):
                self._host_has_room.wait()
            if self._closed or self._end is not None:
                return False
            for batch in round_:
                self._host.append((self._read_count, batch))
                self._read_count += 1
            self._work_is_there.notify(len(round_))
            return True

    def _transfer(self) -> None:
        while (item := self._take()) is not None:
            number, batch = item
            device = number % self._devices
            try:
                moved = self._transfers[device](batch)
            except BaseException as error:
                self._end_at(number, error)
                continue
            del item, batch
            with self._lock:
                if not self._closed:
                    self._done[number] = moved
                    self._batch_is_there[device].notify()
            del moved

    def _take(self) -> tuple[int, Any] | None:
        """A batch whose device has room, once there is one; None when there will be no more."""
        with self._lock:
            while not self._closed:
                for item in self._host:
                    number = item[0]
                    if number < self._next[number % self._devices] + self._device_capacity:
                        self._host.remove(item)
                        self._host_has_room.notify()
                        return item
                if self._end is not None and not self._host:
                    break
                self._work_is_there.wait()
            return None


def owned_by(owner: Any, prefetcher: Prefetcher) -> None:
    """Closes the prefetcher when its owner is gone, at the latest when the interpreter exits."""
    weakref.finalize(owner, prefetcher.close)
