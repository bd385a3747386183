"""The compiler's figures of a program for chips that are not there, and its refusals as errors."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from torch_xla._src.aot.collectives import Collective
from torch_xla._src.saved_step.folder import Input, Output


class AotError(RuntimeError):
    """There is no executable; the classes that derive from it say why."""


class NoCompiler(AotError):
    """The plugin is not installed, or compiles only for devices that it has."""


class UnknownTopology(AotError):
    """The plugin knows no topology of this name."""


class Refused(AotError):
    """The compiler takes the program for none of its language, or has crashed at it."""


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A value of a program.

    Attributes:
        what: "argument x", "state model.weight", or the operation that computes it.
        type: Its dtype and shape, as in "float32[8, 1024]".
        bytes: Its size without padding.
    """

    what: str
    type: str
    bytes: int

    def __str__(self) -> str:
        return f"{human(self.bytes)} {self.what}, {self.type}"


class DoesNotFit(AotError):
    """The program needs more memory than a chip has.

    Attributes:
        limit: Bytes that a chip has for programs, by the compiler's word; None: it does not say.
        needed: Bytes that the program needs, likewise.
        largest: The largest of what the program takes and computes, the largest first. The compiler
            may fuse, reuse and pad values; the sizes are those of the program as it was written.
        text: The compiler's words.
    """

    def __init__(
        self,
        name: str,
        topology: str,
        text: str,
        limit: int | None,
        needed: int | None,
        largest: Sequence[Buffer],
    ) -> None:
        figures = f"{human(needed)} needed, a chip has {human(limit)}"
        lines = "".join(f"\n  {buffer}" for buffer in largest)
        super().__init__(
            f"{name!r} does not fit on a chip of {topology}: {figures}. The largest values that it "
            f"takes or computes:{lines}\nThe compiler says: {text}"
        )
        self.limit, self.needed, self.largest, self.text = limit, needed, list(largest), text


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes on each chip.

    Attributes:
        arguments: What the program takes: parameters, optimizer state, data.
        outputs: What it gives, those outputs included that take over the memory of arguments.
        aliased: The part of `outputs` that takes over the memory of arguments.
        temporaries: What it needs in between.
        generated_code: The code.
        peak: The most that is in use at one time, by the compiler's own account, which may count
            other parts than `total` does; None where it does not say.
        host: The same kinds in the host's memory, by name; empty where it needs none.
    """

    arguments: int
    outputs: int
    aliased: int
    temporaries: int
    generated_code: int
    peak: int | None
    host: dict[str, int]

    @property
    def total(self) -> int:
        """Bytes that a chip must have: arguments, outputs of their own, temporaries and code."""
        kinds = self.arguments + self.outputs - self.aliased + self.temporaries
        return kinds + self.generated_code

    @classmethod
    def of(cls, figures: dict[str, int]) -> Memory:
        host = {k.removeprefix("host_"): v for k, v in figures.items() if k.startswith("host_")}
        chip = {k: v for k, v in figures.items() if not k.startswith("host_")}
        peak = chip.pop("peak") or None
        return cls(**chip, peak=peak, host={k: v for k, v in host.items() if v})


@dataclasses.dataclass(frozen=True)
class Chip:
    """A chip of a topology, as its compiler takes it.

    Attributes:
        topology: The name that was asked for.
        platform: PJRT's name of the platform, such as "tpu".
        kind: The chip's name, such as "TPU v5 lite".
        count: The topology's devices.
        memory: Bytes that it has for programs; None where the compiler does not say.
        flops_per_second: Of products of matrices in bfloat16, by the compiler's own estimates.
        bytes_per_second: Between the chip and its memory, likewise.
        cycles_per_second: Its clock, as published; None where it is not known here.
        link_bytes_per_second: Of all its links to other chips together, likewise.
    """

    topology: str
    platform: str
    kind: str
    count: int
    memory: int | None
    flops_per_second: float | None
    bytes_per_second: float | None
    cycles_per_second: float | None = None
    link_bytes_per_second: float | None = None


# Published, by the kind of a chip: its clock, and bytes a second of its links together. The clock
# is the peak rate of products over what the units for products do in a cycle.
PUBLISHED = {
    "TPU v4": (1.05e9, 3e11),
    "TPU v5 lite": (1.5e9, 2e11),
    "TPU v5": (1.75e9, 6e11),
    "TPU v6 lite": (1.75e9, 4.48e11),
}


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program that was compiled for a chip that may not be there.

    Attributes:
        name: The function's.
        chip: What it was compiled for.
        memory: Bytes on each chip, by kind.
        flops: Floating-point operations of a run, on each chip; None where the compiler counts
            none, as CUDA's.
        bytes_accessed: Bytes that a run reads from the chip's memory and writes there, likewise.
        optimal_seconds: The compiler's estimate of the time of a run; None where it has none for
            some operation. It takes all products for bfloat16's.
        compute_seconds: The time of the operations alone, at the rate of the compiler's estimates.
        memory_seconds: The time of the bytes alone, likewise.
        kernel_seconds: The sum of what the compiler expects its kernels to take, those in loops as
            often as they run; None where it does not say. It says nothing of what is sent, and of
            some kernels, such as gathers.
        cost: All that the compiler tells of the cost, by its own names.
        mesh: Of a program that is partitioned, the size of each axis; else None.
        collectives: What its devices exchange, by kind, mesh axes and line, the most bytes first.
        inputs: What the program takes, in its order; each has `kind` ("argument", "state" or
            "random"), `name`, `dtype` and `shape`. None of what was recorded without a function.
        outputs: What it gives. `replaces` is the place of the input whose memory it takes over.
        stablehlo: The program's text.
        executable: The executable, in the plugin's own form.
    """

    name: str
    chip: Chip
    memory: Memory
    flops: float | None
    bytes_accessed: float | None
    optimal_seconds: float | None
    compute_seconds: float | None
    memory_seconds: float | None
    kernel_seconds: float | None
    cost: dict[str, Any]
    inputs: list[Input] | None
    outputs: list[Output] | None
    stablehlo: str = dataclasses.field(repr=False)
    executable: bytes = dataclasses.field(repr=False)
    mesh: dict[str, int] | None = None
    collectives: list[Collective] = dataclasses.field(default_factory=list)

    @property
    def bound(self) -> str | None:
        """The slower part, "compute" or "memory"; None where the compiler makes no estimates."""
        if self.compute_seconds is None or self.memory_seconds is None:
            return None
        return "compute" if self.compute_seconds >= self.memory_seconds else "memory"

    @property
    def least_seconds(self) -> float | None:
        """The longer of the two: a bound from below where the compiler has no estimate."""
        if self.compute_seconds is None or self.memory_seconds is None:
            return None
        return max(self.compute_seconds, self.memory_seconds)

    @property
    def sending_seconds(self) -> float | None:
        """The time of all that is exchanged, at the published rate of a chip's links; 0 for a
        program of one chip, None for chips of which no rate is known here."""
        if not self.collectives:
            return 0.0
        rate = self.chip.link_bytes_per_second
        return None if rate is None else sum(c.bytes for c in self.collectives) / rate

    @property
    def has_loops(self) -> bool:
        """True if compilers count something once that runs often: operations, bytes, and the times
        that are made of them."""
        return "stablehlo.while" in self.stablehlo

    @property
    def utilization(self) -> float | None:
        """The part of the chip's peak rate of operations that the estimated time comes to.

        It is what is called MFU where the program computes nothing twice. The compiler's time may
        leave out what devices exchange. None where the program has loops.
        """
        seconds = self.optimal_seconds or self.least_seconds
        if not seconds or self.compute_seconds is None or self.has_loops:
            return None
        return self.compute_seconds / seconds

    def save(self, path: str | os.PathLike) -> None:
        """Writes the executable, which a client of the same plugin and version can load."""
        Path(path).write_bytes(self.executable)

    def operations_text(self) -> str:
        """`flops` in GFLOP."""
        return "unknown" if self.flops is None else f"{self.flops / 1e9:,.3f} GFLOP"

    def time_text(self) -> str:
        """The estimate, or its bound from below."""
        if self.optimal_seconds is not None:
            return _time(self.optimal_seconds)
        return "unknown" if self.least_seconds is None else f">= {_time(self.least_seconds)}"

    def __str__(self) -> str:
        memory, chip = self.memory, self.chip
        rows = [
            ("memory", f"{human(memory.total)} of {human(chip.memory)}"),
            ("  arguments", human(memory.arguments)),
            ("  outputs", f"{human(memory.outputs)}, {human(memory.aliased)} of it in arguments"),
            ("  temporaries", human(memory.temporaries)),
            ("  generated code", human(memory.generated_code)),
        ]
        if memory.peak is not None:
            rows.append(("  peak", human(memory.peak)))
        rows += [(f"  host {kind}", human(size)) for kind, size in memory.host.items()]
        rows.append(("operations", self.operations_text()))
        rows.append(("bytes accessed", human(self.bytes_accessed)))
        rows.append(("time", self.time_text()))
        if self.kernel_seconds is not None:
            rows.append(("  of all kernels", _time(self.kernel_seconds)))
        compute, traffic = self.compute_seconds, self.memory_seconds
        if self.bound is not None and compute is not None and traffic is not None:
            times = f"compute {_time(compute)}, memory {_time(traffic)}"
            rows.append(("bound", f"{self.bound} ({times})"))
        if self.utilization is not None:
            rows.append(("utilization", f"{self.utilization:.0%} of the chip's operations"))
        if self.has_loops:
            once = "what they repeat counts once in operations, bytes, time and bound"
            rows.append(("loops", once))
        split = ""
        if self.mesh is not None:
            split = ", split along " + ", ".join(f"{k}={n}" for k, n in self.mesh.items())
        lines = [f"{self.name} for {chip.topology} ({chip.kind}){split}, on each chip"]
        lines += [f"  {name:18} {value}" for name, value in rows]
        return "\n".join([*lines, *self._exchange_lines()])

    def _exchange_lines(self, most: int = 8) -> list[str]:
        if self.mesh is None:
            return []
        total = sum(c.bytes for c in self.collectives)
        lines = [f"  {'exchanged':18} {human(total)}"]
        if self.sending_seconds:
            lines[0] += f", {_time(self.sending_seconds)} at the rate of a chip's links"
        for c in self.collectives[:most]:
            along = f" along {', '.join(c.axes)}" if c.axes else ""
            what = f"{c.count} {c.kind}{along}"
            lines.append(f"    {human(c.bytes):>10} {what:34} {c.operation} {c.line}".rstrip())
        return lines


_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def human(size: float | None) -> str:
    """Bytes in a unit of which there are between 1 and 1024; "unknown" for None."""
    if size is None:
        return "unknown"
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.2f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3f} us"


def does_not_fit(
    name: str, topology: str, text: str, program: dict[str, Any], inputs: Sequence[Input] | None
) -> DoesNotFit:
    needed, limit = memory_figures(text)
    return DoesNotFit(name, topology, text, limit, needed, largest_buffers(program, inputs))


def memory_figures(text: str) -> tuple[int | None, int | None]:
    """A program's need and the memory there is, read from XLA's words."""
    amount = r"([\d.]+)([KMGT]?)i?B?"
    for pattern in (
        rf"\({amount}\) exceeds available \w+ \({amount}\)",
        rf"Used {amount} of {amount} ",
    ):
        if found := re.search(pattern, text):
            needed, unit, limit, limit_unit = found.groups()
            return _bytes(needed, unit), _bytes(limit, limit_unit)
    return None, None


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * 1024 ** _UNITS[unit])


def largest_buffers(
    program: dict[str, Any], inputs: Sequence[Input] | None, most: int = 8
) -> list[Buffer]:
    """The largest arguments of a program and values of its operations, each kind once.

    `program` is what the extension's `_read_program` gives.
    """
    found: dict[tuple[str, Any], Buffer] = {}
    arguments, _ = program["functions"]["main"]
    for i, (_, shape, dtype) in enumerate(arguments if inputs is None else ()):
        found["", i] = _buffer(f"argument {i}", shape, dtype)
    for i, given in enumerate(inputs or ()):
        size = getattr(torch, given.dtype).itemsize * math.prod(given.shape)
        what = f"{given.kind} {given.name}"
        found["", i] = Buffer(what, _type(given.dtype, given.shape), size)
    blocks = list(program["functions"].values())
    while blocks:
        for name, _, results, _, regions in blocks.pop()[1]:
            blocks += regions
            dialect, _, operation = name.partition(".")
            for _, *kind in results if dialect in ("stablehlo", "chlo") else ():
                found.setdefault((operation, tuple(kind)), _buffer(operation, *kind))
    return sorted(found.values(), key=lambda buffer: -buffer.bytes)[:most]


def _buffer(what: str, shape: Sequence[int], element: str) -> Buffer:
    bits = int("".join(c for c in element.partition("E")[0] if c.isdigit()))
    bits *= 2 if element.startswith("complex") else 1
    return Buffer(what, _type(element, shape), max(1, bits // 8) * math.prod(shape))


def _type(dtype: str, shape: Sequence[int]) -> str:
    return f"{dtype}{list(shape)}"
