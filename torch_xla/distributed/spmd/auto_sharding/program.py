"""The program that a planner is given (`describe` in csrc/executor/program/lower.h)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_BYTES = {"i1": 1, "f64": 8, "i64": 8, "ui64": 8, "c64": 8, "f32": 4, "i32": 4, "ui32": 4}
_BYTES |= {"bf16": 2, "f16": 2, "i16": 2, "ui16": 2, "i8": 1, "ui8": 1, "complex<f32>": 8}
_BYTES |= {"complex<f64>": 16}


@dataclass(frozen=True)
class Type:
    """Sizes and dtype of a value."""

    dims: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.dims)

    @property
    def bytes(self) -> int:
        return self.elements * _BYTES.get(self.dtype, 1)


@dataclass
class Operation:
    """One operation of the main function, or of a loop in it.

    Attributes:
        name: Its name. `loop.carry` stands at the end of a loop's body, for each value: what it is
            then, and what it was.
        operands, results: Numbers of values.
        attributes: Numbers, tuples and texts by name.
        times: How often it runs.
    """

    name: str
    operands: list[int]
    results: list[int]
    attributes: dict[str, Any] = field(default_factory=dict)
    times: int = 1

    def numbers(self, attribute: str) -> list[int]:
        """The numbers of an attribute that is a list; none where it is missing."""
        return list(self.attributes.get(attribute, ()))

    def number(self, attribute: str, default: int = 0) -> int:
        """The number of an attribute."""
        return self.attributes.get(attribute, default)


@dataclass
class Program:
    """The main function of a program, by the numbers of its values."""

    arguments: list[int]
    types: dict[int, Type] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    # For each recorded call: how many operations precede its end, and its results.
    calls: list[tuple[int, int, list[int]]] = field(default_factory=list)


def read(data: dict[str, Any]) -> Program:
    """The main function of a program.

    Args:
        data: A module as the extension's `_read_program` gives it, with operations
            `torch_xla.results`, which end the operations of a recorded call.
    """
    arguments, operations = data["functions"]["main"]
    types: dict[int, Type] = {}
    program = Program(_typed(types, arguments), types)
    for operation in operations:
        _add(program, operation, 1)
    return program


def _typed(types: dict[int, Type], values: Sequence[tuple[int, tuple[int, ...], str]]) -> list[int]:
    """The numbers of values, whose types are kept."""
    types.update({number: Type(dims, dtype) for number, dims, dtype in values})
    return [number for number, _, _ in values]


def _add(program: Program, operation: tuple[Any, ...], times: int) -> None:
    name, taken, made, attributes, regions = operation
    operands = list(taken)
    if name == "func.return":
        program.results = operands
    elif name == "torch_xla.results":
        program.calls.append((len(program.operations), attributes["call"], operands))
    elif name == "stablehlo.while":
        _add_loop(program, operands, _typed(program.types, made), regions, times)
    else:
        results = _typed(program.types, made)
        program.operations.append(Operation(name, operands, results, attributes, times))


def _add_loop(
    program: Program, operands: list[int], results: list[int], regions: Sequence[Any], times: int
) -> None:
    """A loop is its body, once: what goes around is passed on before it and after it."""
    (_, condition), (carried, (*body, end)) = regions
    # It counts to the number of its times, which stands in its condition.
    constants = (o[3]["value"] for o in condition if o[0] == "stablehlo.constant")
    inside = times * max([1, *(n for n in constants if isinstance(n, int))])
    arguments = _typed(program.types, carried)
    program.operations.append(Operation("loop.pass", operands, arguments))
    for inner in body:
        _add(program, inner, inside)
    returned = list(end[1])
    for value, argument in zip(returned, arguments, strict=True):
        program.operations.append(Operation("loop.carry", [value, argument], [], times=inside))
    program.operations.append(Operation("loop.pass", returned, results))
