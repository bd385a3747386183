"""Faults that are known and not yet mended: programs leave these steps out, so that what lies
beyond them is found. An entry goes when its fault is mended; the table should be empty."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.fuzz.compare import Difference
from tests.fuzz.program import Seen, Step

if TYPE_CHECKING:
    from tests.fuzz.draw import Draw

Known = Callable[["Draw", Step, Seen], bool]


def _written(d: Draw, seen: Seen) -> list[str]:
    """The tensors whose memory this step wrote."""
    steps = d.runner.trace.steps
    before = steps[-2].tensors if len(steps) > 1 else {}
    return [
        name
        for name, now in seen.tensors.items()
        if name in before and before[name]["_version"] != now["_version"]
    ]


def _through_an_expansion(d: Draw, step: Step, seen: Seen) -> bool:
    """Writes into one row of an expanded tensor are lost."""
    written = _written(d, seen)
    expanded = [t for t in seen.tensors.values() if 0 in t["stride"]]
    owners = {t["shares memory with"] for t in expanded}
    in_line = "expand" in step.line or "broadcast_to" in step.line
    shared = any(seen.tensors[n]["shares memory with"] in owners for n in written)
    return bool(written) and (in_line or shared)


def _lists(d: Draw, step: Step, seen: Seen) -> bool:
    """Writes to lists do not count as writes."""
    listed = "_foreach_" in step.line or "clip_grad" in step.line
    return listed or ("torch.optim" in step.line and "foreach=False" not in step.line)


CONVERSIONS = re.compile(r"\.(to|type|float|half|long|bfloat16|nonzero|double)\(")


def _strides(d: Draw, step: Step, seen: Seen) -> bool:
    """Strides of conversions and convolutions are row-major."""
    new = [d.runner.names[n] for n in seen.tensors if step.line.startswith(f"{n} = ")]
    moved = any(not t.is_contiguous() for t in new)
    if step.kind == "image":
        return moved or ".mT" in step.line
    return moved and bool(CONVERSIONS.search(step.line))


def _copies(d: Draw, step: Step, seen: Seen) -> bool:
    """Copies by the modules copy and pickle are of values, not of memory."""
    return "__import__('copy')" in step.line


def _offsets(d: Draw, step: Step, seen: Seen) -> bool:
    """storage_offset() of a view of another dtype is that of its base."""
    new = [d.runner.names[n] for n in seen.tensors if step.line.startswith(f"{n} = ")]
    other = [t for t in new if t._base is not None and t._base.dtype != t.dtype]
    return any(t.storage_offset() or t._base.storage_offset() for t in other)


# What the step does that is known to differ.
KNOWN: list[Known] = [_through_an_expansion, _lists, _strides, _copies, _offsets]


# What an error says that is known.
MESSAGES = ["buffer has been deleted or donated"]


def expected(found: Difference) -> bool:
    return any(words in found.detail for words in MESSAGES)


def refuse(d: Draw, step: Step, seen: Seen) -> bool:
    return any(known(d, step, seen) for known in KNOWN)
