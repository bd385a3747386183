"""Reads the program that a planner is given (`describe` in csrc/executor/program/lower.h)."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

_BYTES = {"i1": 1, "f64": 8, "i64": 8, "ui64": 8, "c64": 8, "f32": 4, "i32": 4, "ui32": 4}
_BYTES |= {"bf16": 2, "f16": 2, "i16": 2, "ui16": 2, "i8": 1, "ui8": 1, "complex<f32>": 8}
_BYTES |= {"complex<f64>": 16}

_TYPE = re.compile(r"tensor<((?:\d+x)*)([^>]*(?:<[^>]*>)?)>")
_VALUE = re.compile(r"%(\d+)")
_OPERATION = re.compile(r'\s*(?:((?:%\d+(?:, )?)+) = )?"([\w.]+)"\(([^)]*)\)')
_CALL = re.compile(r"call = (\d+) : i64")


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
        attributes: The text of all its attributes.
        times: How often it runs.
    """

    name: str
    operands: list[int]
    results: list[int]
    attributes: str = ""
    times: int = 1

    def numbers(self, attribute: str) -> list[int]:
        """The numbers of an attribute such as `dimensions = array<i64: 0, 1>` or `[0, 1]`."""
        list_of = r" = (?:array<i64:? ?([^>]*)>|\[([^\]]*)\])"
        found = re.search(r"(?<!\w)" + attribute + list_of, self.attributes)
        if found is None:
            return []
        return [int(n) for n in re.findall(r"-?\d+", found[1] or found[2] or "")]

    def number(self, attribute: str, default: int = 0) -> int:
        """The number of an attribute such as `dimension = 1 : i64`."""
        found = re.search(r"(?<!\w)" + attribute + r" = (-?\d+)", self.attributes)
        return default if found is None else int(found[1])


@dataclass
class Program:
    """The main function of a program, by the numbers of its values."""

    arguments: list[int]
    types: dict[int, Type] = field(default_factory=dict)
    operations: list[Operation] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    # For each recorded call: how many operations precede its end, and its results.
    calls: list[tuple[int, int, list[int]]] = field(default_factory=list)


def _types(text: str) -> list[Type]:
    return [
        Type(tuple(int(n) for n in dims.split("x") if n), dtype)
        for dims, dtype in _TYPE.findall(text)
    ]


def _statements(lines: list[str]) -> list[str]:
    """The operations of a function or region, each with its regions."""
    statements: list[str] = []
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    for line in lines:
        if line[indent] in '"%' and line[:indent].isspace():
            statements.append(line)
        else:
            statements[-1] += "\n" + line
    return statements


def read(text: str) -> Program:
    """Reads a program.

    Args:
        text: A module as `hlo::Builder` prints it, with lines `"torch_xla.results"`.
    """
    start = text.index("  func.func public @main(")
    end = text.index("\n  }\n", start)
    head, *body = text[start:end].split("\n")
    # Attributes hold no types of tensors.
    given = re.findall(r"%(\d+): (tensor<[^>]*(?:<[^>]*>)?>)", head.split(") -> (")[0])
    program = Program([int(number) for number, _ in given])
    for number, kind in given:
        program.types[int(number)] = _types(kind)[0]
    for statement in _statements(body):
        _add(program, statement, 1)
    return program


def _add(program: Program, statement: str, times: int) -> None:
    found = _OPERATION.match(statement)
    assert found is not None, statement
    made, name, taken = found.groups()
    operands = [int(n) for n in _VALUE.findall(taken)]
    if name == "func.return":
        program.results = operands
        return
    if name == "torch_xla.results":
        call = int(_CALL.search(statement)[1])  # type: ignore[index]
        program.calls.append((len(program.operations), call, operands))
        return
    # Attributes stand after the regions, and the types last.
    tail = statement[statement.rindex("\n") :] if "\n" in statement else statement[found.end() :]
    attributes, _, signature = tail.rpartition(" : (")
    results = [int(n) for n in _VALUE.findall(made or "")]
    types = _types(signature.rpartition(" -> ")[2])
    program.types.update(zip(results, types, strict=True))
    if name == "stablehlo.while":
        _add_loop(program, statement, operands, results, times)
    else:
        program.operations.append(Operation(name, operands, results, attributes, times))


def _add_loop(
    program: Program, statement: str, operands: list[int], results: list[int], times: int
) -> None:
    """A loop is its body, once: what goes around is passed on before it and after it."""
    lines = statement.split("\n")
    indent = " " * (len(lines[0]) - len(lines[0].lstrip()))
    between = lines.index(indent + "}, {")
    condition, body = lines[1:between], lines[between + 1 : -1]
    # It counts to the number of its times, which stands in its condition.
    counts = [int(n) for line in condition for n in re.findall(r"dense<(\d+)> : tensor<i", line)]
    inside = times * max([1, *counts])
    arguments = [int(n) for n, _ in re.findall(r"%(\d+): (tensor<)", body[0])]
    for argument, operand in zip(arguments, operands, strict=True):
        program.types[argument] = program.types[operand]
    program.operations.append(Operation("loop.pass", operands, arguments))
    *statements, end = _statements(body[1:])
    for inner in statements:
        _add(program, inner, inside)
    returned = [int(n) for n in _VALUE.findall(end.partition("(")[2].partition(")")[0])]
    for value, argument in zip(returned, arguments, strict=True):
        program.operations.append(Operation("loop.carry", [value, argument], [], times=inside))
    program.operations.append(Operation("loop.pass", returned, results))
