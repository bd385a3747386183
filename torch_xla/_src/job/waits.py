"""Where threads of Python wait for other processes of the job, for those that tell of it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

_numbers = itertools.count()
_now: dict[int, tuple[str, float]] = {}


@contextmanager
def waiting(text: str) -> Iterator[None]:
    """The calling thread waits meanwhile; the text follows the word."""
    number = next(_numbers)
    _now[number] = text, time.monotonic()
    try:
        yield
    finally:
        del _now[number]


def now() -> list[tuple[str, float]]:
    """The texts, and the seconds so far."""
    return [(text, time.monotonic() - since) for text, since in list(_now.values())]
