"""Faults that are known and not yet mended: programs leave these steps out, so that what lies
beyond them is found. An entry goes when its fault is mended; the table should be empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.fuzz.program import Seen, Step

if TYPE_CHECKING:
    from tests.fuzz.draw import Draw


def base_of_a_result(d: Draw, step: Step, seen: Seen) -> bool:
    """Results of a graph without gradients share memory and versions, and none is the other's
    `_base`: what one requires later is not what the other does (docs/torch_compile.md)."""
    if not step.line.endswith(".requires_grad_()") or not any(
        "compiled(" in s.line for s in d.steps
    ):
        return False
    base = d.value(step.line.removesuffix(".requires_grad_()"))
    return bool(d.tensors(lambda t: t._base is base))


def view_without_gradients_of_a_result(d: Draw, step: Step, seen: Seen) -> bool:
    """A graph for the CPU may give a view of what it made without gradients: a view of it in turn,
    made without gradients, requires none. Eager PyTorch and this device say that it does."""
    if "no_grad" not in step.line and "inference_mode" not in step.line:
        return False
    return bool(
        d.tensors(lambda t: t.requires_grad and t._base is not None and not t._base.requires_grad)
    )


def second_gradient_of_a_product(d: Draw, step: Step, seen: Seen) -> bool:
    """The CPU reads the values, and of a product with zeros over one element it takes the gradient
    as it is: a second one is not wanted. A recorded formula is one for all values."""
    return "create_graph" in step.line and any(".prod(" in s.line for s in d.steps)


# Whether a step does what is known to differ.
KNOWN: list[Callable[[Draw, Step, Seen], bool]] = [
    base_of_a_result,
    view_without_gradients_of_a_result,
    second_gradient_of_a_product,
]


def refuse(d: Draw, step: Step, seen: Seen) -> bool:
    return any(known(d, step, seen) for known in KNOWN)
