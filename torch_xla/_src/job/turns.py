"""One process of a host, or of the job, at a time."""

from __future__ import annotations

import itertools
import threading
from types import TracebackType
from typing import Any

from torch_xla._src.job import place, store, waits

_numbers = itertools.count()


class Turns:
    """Context manager: no other process of this host is in the block of the same object.

    It is the same in each process that makes such objects in the same order, or has this one from
    its parent. They take numbers in the job's store, and wait for the one before to be done.

    Args:
        of_job: Where it is given, no other process of the job is in a block of this name.
    """

    def __init__(self, of_job: str = "") -> None:
        self._of_job = of_job
        self._number = -1 if of_job else next(_numbers)
        self._lock = threading.Lock()
        self._turn = 0

    def __enter__(self) -> Turns:
        self._lock.acquire()
        if place.world_size() > 1:
            try:
                self._turn = store.store("turns").add(self._key("taken"), 1)
                if self._turn > 1:
                    with waits.waiting("for its turn"):
                        store.store("turns").get(self._key(f"done/{self._turn - 1}"))
            except BaseException:
                self._lock.release()
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if place.world_size() > 1:
            store.store("turns").set(self._key(f"done/{self._turn}"), "")
        self._lock.release()

    def _key(self, name: str) -> str:
        return f"turns/{self._of_job or f'{place.host_index()}/{self._number}'}/{name}"

    def __getstate__(self) -> dict[str, Any]:
        return {"_number": self._number, "_of_job": self._of_job}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["_of_job"])  # type: ignore[misc]
        self._number = state["_number"]
