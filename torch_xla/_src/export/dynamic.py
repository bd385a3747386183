"""Programs of dynamic sizes: an exported program is recorded for several sizes, and what differs
between those programs depends on a size."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch.export import ExportedProgram

from torch_xla import _XLAC

# Sizes of a dynamic dimension. Their remainders by small numbers differ, so that a half of a size,
# say, is not taken for a multiple of it.
_SIZES = (23, 28, 30, 37)
# Those of several dimensions come in other orders, so that no size is a sum with another one.
_ORDERS = list(itertools.permutations(range(len(_SIZES))))
_BETWEEN_DIMENSIONS = 36  # a multiple of those small numbers


def record(
    program: ExportedProgram,
    record_for: Callable[[Callable[[Any], int]], Any],
    with_locations: bool,
) -> Any:
    """The program that `record_for` records, of dynamic sizes.

    Args:
        program: The exported program.
        record_for: Records it; takes a function that gives a size for each `torch.SymInt`.
        with_locations: Whether the result carries the model's lines.

    Raises:
        NotImplementedError: Something in the program depends on a dynamic size in another way than
            by multiples and sums.
        ValueError: A dynamic size has fewer than three values.
    """
    symbols = _symbols(program)
    sizes_of = []
    for i, symbol in enumerate(symbols):
        sizes = _sizes(program, symbol, i * _BETWEEN_DIMENSIONS)
        sizes_of.append([sizes[place] for place in _ORDERS[7 * i % len(_ORDERS)]])
    recorded = []
    for sizes in map(list, zip(*sizes_of, strict=True)):
        values = dict(zip(symbols, sizes, strict=True))
        recorded.append((sizes, record_for(functools.partial(_value, values=values))))
    text = _XLAC._dynamic_program([(sizes, r.text) for sizes, r in recorded], with_locations)
    first, second = recorded[0][1], recorded[1][1]
    dynamic = {}
    for i, (a, b) in enumerate(zip(first.results, second.results, strict=True)):
        if isinstance(a, torch.Tensor):
            dynamic[i] = [d for d in range(a.dim()) if a.shape[d] != b.shape[d]]
        elif a != b:
            raise NotImplementedError(
                f"stablehlo: expected tensors as results of the model, got a number as result {i} "
                f"that depends on a dynamic size. Return torch.tensor(number)."
            )
    return dataclasses.replace(first, text=text, dynamic_results=dynamic)


def is_dynamic(size: Any) -> bool:
    """True if a size has a symbol; one that was specialized is a constant `torch.SymInt`."""
    return isinstance(size, torch.SymInt) and bool(size.node.expr.free_symbols)


def line_of(size: torch.SymInt) -> tuple[str, int, int] | None:
    """A size as (symbol, factor, offset), or None where it is no line of one symbol."""
    expression = size.node.expr
    symbols = expression.free_symbols
    if len(symbols) != 1:
        return None
    (symbol,) = symbols
    factor, offset = expression.coeff(symbol), expression.subs(symbol, 0)
    is_line = factor.is_Integer and offset.is_Integer and expression == factor * symbol + offset
    return (str(symbol), int(factor), int(offset)) if is_line else None


def ranges_of(program: ExportedProgram) -> dict[str, list[int | None]]:
    """The least and the largest value of each symbol that the arguments' sizes depend on."""
    return {
        str(symbol): list(_range(program, symbol))
        for symbol in _symbols(program)
        if symbol in program.range_constraints
    }


def _range(program: ExportedProgram, symbol: Any) -> tuple[int, int | None]:
    constraint = program.range_constraints[symbol]
    least = int(constraint.lower)
    # PyTorch takes sizes to be 2 or more while it exports, and does not look at calls.
    return least if least > 2 else 0, int(constraint.upper) if constraint.upper.is_Integer else None


def _value(size: Any, values: dict[Any, int]) -> int:
    # An int() of a SymInt would make it static.
    return int(size.node.expr.xreplace(values)) if isinstance(size, torch.SymInt) else int(size)


def _symbols(program: ExportedProgram) -> list[Any]:
    """The sizes that the shapes of the arguments depend on."""
    found: dict[Any, None] = {}
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if node.op == "placeholder" and isinstance(value, torch.Tensor):
            for size in value.shape:
                if isinstance(size, torch.SymInt) and is_dynamic(size):
                    found.update(dict.fromkeys(sorted(size.node.expr.free_symbols, key=str)))
    return list(found)


def _sizes(program: ExportedProgram, symbol: Any, distance: int) -> list[int]:
    lower, upper = 2, None
    if symbol in program.range_constraints:
        lower, upper = _range(program, symbol)
        lower = max(lower, 2)
    wanted = [size + distance for size in _SIZES]
    if lower > wanted[0]:
        wanted = [lower + size for size in wanted]
    if upper is None or wanted[-1] <= upper:
        return wanted
    if upper - lower < len(_SIZES) - 1:
        raise ValueError(
            f"stablehlo: expected a dynamic dimension of {len(_SIZES)} sizes or more, got one from "
            f"{lower} to {upper}. Export the model with a static size."
        )
    # The largest four, spread where there is room.
    step = min((upper - lower) // (len(_SIZES) - 1), 7)
    return [upper - step * i - (i == 1 and step > 1) for i in range(len(_SIZES))][::-1]
