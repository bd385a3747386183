"""Faults that are known and not yet mended: programs leave these steps out, so that what lies
beyond them is found. An entry goes when its fault is mended; the table should be empty."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from tests.fuzz.program import Seen, Step

if TYPE_CHECKING:
    from tests.fuzz.draw import Draw


def second_gradient_of_a_product(d: Draw, step: Step, seen: Seen) -> bool:
    """The CPU reads the values, and of a product with zeros over one element it takes the gradient
    as it is: a second one is not wanted. A recorded formula is one for all values."""
    return "create_graph" in step.line and any(".prod(" in s.line for s in d.steps)


def write_to_a_double_of_no_dimensions(d: Draw, step: Step, seen: Seen) -> bool:
    """AOTAutograd of PyTorch 2.13 loses a write to a float64 argument of no dimensions on the CPU:
    `torch.compile(lambda c: (c.mul_(2.0),), backend="aot_eager")` leaves it as it was."""
    _, called, call = step.line.rpartition("compiled(")
    taken = d.tensors(lambda t: t.ndim == 0 and t.dtype == torch.float64)
    return bool(called) and re.search(r"_\(", call) is not None and bool(step.names & set(taken))


# Whether a step does what is known to differ.
KNOWN: list[Callable[[Draw, Step, Seen], bool]] = [
    second_gradient_of_a_product,
    write_to_a_double_of_no_dimensions,
]


def refuse(d: Draw, step: Step, seen: Seen) -> bool:
    return any(known(d, step, seen) for known in KNOWN)
