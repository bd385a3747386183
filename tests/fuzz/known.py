"""Faults that are known and not yet mended: programs leave these steps out, so that what lies
beyond them is found. An entry goes when its fault is mended; the table should be empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.fuzz.program import Seen, Step

if TYPE_CHECKING:
    from tests.fuzz.draw import Draw


def _deep_copy_of_a_part(d: Draw, step: Step, seen: Seen) -> bool:
    """copy.deepcopy copies the elements of a view on xla, all its memory on the CPU: the copy's
    storage_offset() is 0."""
    new = [d.runner.names[n] for n in seen.tensors if step.line.startswith(f"{n} = ")]
    return ".deepcopy(" in step.line and any(t.storage_offset() for t in new)


# Whether a step does what is known to differ.
KNOWN: list[Callable[[Draw, Step, Seen], bool]] = [_deep_copy_of_a_part]


def refuse(d: Draw, step: Step, seen: Seen) -> bool:
    return any(known(d, step, seen) for known in KNOWN)
