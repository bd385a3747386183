"""Ranks compare what they exchange, before they do so for the first time.

Each rank describes the exchanges of a program of each group that takes part. What a group has not
exchanged before in this order is compared through the job's store. While ranks do the same, what is
new to one of them is new to all.
"""

from __future__ import annotations

import hashlib
import json
import time
from typing import NamedTuple

from torch_xla._src.job import place, store, waits

Note = tuple[str, str]  # the exchange, the user's line
_Group = tuple[int, ...]


class _Told(NamedTuple):
    """A rank's word on a new program."""

    first: int  # number of its first exchange in the group
    notes: list[Note]

    def text(self) -> str:
        return json.dumps(self)

    @classmethod
    def read(cls, data: bytes) -> _Told:
        first, notes = json.loads(data)
        return cls(first, [(text, line) for text, line in notes])


_known: dict[_Group, set[str]] = {}  # what each group has agreed on
_lines: dict[str, str] = {}  # where an exchange was recorded last


def agree(group: _Group, first: int, notes: list[Note]) -> None:
    """Compares the exchanges of a program that is about to be launched for the first time.

    Args:
        group: The ranks that take part.
        first: The number of the first exchange in the group.
        notes: The exchanges, in their order.

    Raises:
        RuntimeError: Another rank of the group is about to exchange something else, or the job's
            store is gone.
    """
    _lines.update(notes)
    known = _known.setdefault(group, set())
    digest = hashlib.sha256("\n".join(text for text, _ in notes).encode()).hexdigest()
    if digest in known:
        return
    number = len(known)
    known.add(digest)
    rank = place.rank()
    mine = _Told(first, notes)
    try:
        shared = store.store()
        shared.set(_key(group, number, rank), mine.text())
        for other in group:
            with waits.waiting(f"for rank {other} before the exchange of {notes[0][1]}"):
                while not shared.check([_key(group, number, other)]):
                    time.sleep(0.005)  # others may still compile; the watch tells who has ended
            theirs = _Told.read(shared.get(_key(group, number, other)))
            if [text for text, _ in theirs.notes] != [text for text, _ in notes]:
                _refuse(group, (rank, mine), (other, theirs))
    except ConnectionError as error:
        raise RuntimeError(
            f"collectives: expected the job's store, by which the ranks {list(group)} agree, got "
            f"'{error}'. The process that keeps it has ended."
        ) from error


def line_of(text: str) -> str:
    """Where an exchange of this text was recorded last; empty where that is not known."""
    return _lines.get(text, "")


def stalled(group: _Group, number: int, text: str, seconds: float) -> None:
    """Called every few seconds by an exchange that waits for the others.

    Args:
        group: The ranks that take part.
        number: Of this exchange in the group.
        text: The exchange.
        seconds: For how long it has waited.

    Raises:
        RuntimeError: Another rank is about to exchange something else in its place.
    """
    rank = place.rank()
    new = len(_known.get(group, ()))
    for other in group:
        key = _key(group, new, other)
        if other == rank or not store.store().check([key]):
            continue
        theirs = _Told.read(store.store().get(key))
        if theirs.first > number:
            continue  # it is ahead, and waits for us
        line = f"{_lines.get(text, '')} (in a program that has run before)"
        mine = _Told(theirs.first, [*theirs.notes[: number - theirs.first], (text, line)])
        store.store().set(_key(group, new, rank), mine.text())
        _refuse(group, (rank, mine), (other, theirs))


def _key(group: _Group, number: int, rank: int) -> str:
    return f"agree/{','.join(map(str, group))}/{number}/{rank}"


def _refuse(group: _Group, mine: tuple[int, _Told], theirs: tuple[int, _Told]) -> None:
    """Names the first exchange that differs, with the user's line on each side."""
    notes = [told.notes for _, told in (mine, theirs)]
    first = next(
        (i for i, (a, b) in enumerate(zip(*notes, strict=False)) if a[0] != b[0]),
        min(map(len, notes)),
    )

    def side(rank: int, told: _Told) -> str:
        if first >= len(told.notes):
            return f"  rank {rank}: nothing more, after {len(told.notes)}"
        text, line = told.notes[first]
        return f"  rank {rank}: {text} at {line or 'a line that is not known'}"

    raise RuntimeError(
        f"collectives: expected the same of all ranks of group {list(group)}, got as number "
        f"{first + 1} of a program:\n{side(*mine)}\n{side(*theirs)}\n"
        "All ranks have to call the same collectives in the same order, on tensors of the same "
        "shapes, and to read what needs them alike."
    )
