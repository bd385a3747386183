"""Says what a process of a job does now, to those that wait for it."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable
from typing import NamedTuple

from torch_xla import _XLAC
from torch_xla._src.job import waits

_LIBRARIES = re.compile(r"/(torch|torch_xla|python3[.0-9]*)/|^<")
_MOST_LINES = 16  # of a table


class State(NamedTuple):
    text: str
    waits: float  # the seconds for which it has waited for others; 0: it does not


def here(main: threading.Thread) -> State:
    """That of this process, whose main thread is this one."""
    notes, since_launch, _ = _XLAC._xla_doing()
    texts, waited = [], 0.0
    for work, what, seconds in notes:
        texts.append(f"{work} {what} for {seconds:.0f} s")
        if work != "compiles":
            waited = max(waited, seconds)
    for text, seconds in waits.now():
        texts.append(f"waits {text} for {seconds:.0f} s")
        waited = max(waited, seconds)
    where = line_of(main)
    if texts:
        texts.append(f"Python is at {where}")
    elif since_launch < 0:
        texts.append(f"runs Python at {where} (no program launched so far)")
    else:
        texts.append(f"runs Python at {where} (no program launched for {since_launch:.0f} s)")
    return State(", ".join(texts), waited)


def table(states: Iterable[tuple[int, State]]) -> str:
    """A line for each rank; of many those first that do not wait."""
    ordered = sorted(states)
    if len(ordered) > _MOST_LINES:
        ordered.sort(key=lambda item: (item[1].waits > 0, item[0]))
    lines = [f"  rank {rank}: {state.text}" for rank, state in ordered[:_MOST_LINES]]
    if more := len(ordered) - len(lines):
        lines.append(f"  and {more} more")
    return "\n".join(lines)


def line_of(thread: threading.Thread) -> str:
    """Where a thread is, in code of the user's."""
    frame = sys._current_frames().get(thread.ident or 0)
    while (
        frame is not None
        and frame.f_back is not None
        and _LIBRARIES.search(frame.f_code.co_filename)
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else "its end"
