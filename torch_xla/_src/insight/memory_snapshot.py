"""The contents of the devices' memory: which tensors, of which kind, made by which line."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.insight.kept_runs import leaves


@dataclasses.dataclass(frozen=True)
class LiveTensor:
    """Data on a device.

    Attributes:
        bytes: On all real devices together.
        type: "Float[8,4]", as the device holds it.
        kind: "parameter" (and buffers of modules), "gradient", "optimizer state" or "other":
            activations that a backward pass waits for, inputs, results.
        name: Of the parameter, "Net.layers.3.weight"; "" for others.
        line: The user's line that made it, "train.py:31 (train)"; "" where none is known.
        module: The module or optimizer that did, where names of modules were recorded.
        device: The number of the device, 1 for "xla:1".
    """

    bytes: int
    type: str
    kind: str
    name: str
    line: str
    module: str
    device: int


@dataclasses.dataclass(frozen=True)
class Temporaries:
    """The memory of a program's temporaries, by the compiler's analysis."""

    program: str
    line: str
    bytes: int


@dataclasses.dataclass(frozen=True)
class MemorySnapshot:
    """The contents of the devices at one moment.

    Attributes:
        tensors: The largest first.
        temporaries: Of the programs that are kept, the largest first; while one runs, that much
            comes on top.
    """

    tensors: list[LiveTensor]
    temporaries: list[Temporaries]

    @property
    def bytes(self) -> int:
        return sum(t.bytes for t in self.tensors)

    def by_kind(self) -> dict[str, int]:
        """Bytes of parameters, gradients, optimizer state and others."""
        return _sums(self.tensors, lambda t: t.kind)

    def by_line(self) -> dict[str, int]:
        """Bytes by the line that made them, the most first."""
        return _sums(self.tensors, lambda t: t.line or "no line")

    def by_module(self) -> dict[str, int]:
        """Bytes by module, the most first: that of a parameter, else the one that made it."""
        return _sums(self.tensors, lambda t: t.name.rpartition(".")[0] or t.module or "no module")

    def __str__(self) -> str:
        return self.text()

    def text(self, most: int = 10) -> str:
        """Tables of kinds, lines and largest tensors, of at most `most` rows each."""
        lines = [f"{_size(self.bytes)} in {len(self.tensors)} tensors"]
        for title, sums in (("kind", self.by_kind()), ("line", self.by_line())):
            lines += ["", f"{'':>12}  {title}"]
            lines += [f"{_size(b):>12}  {name}" for name, b in list(sums.items())[:most]]
            if len(sums) > most:
                rest = sum(list(sums.values())[most:])
                lines.append(f"{_size(rest):>12}  {len(sums) - most} others")
        lines += ["", f"{'':>12}  largest tensors"]
        for t in self.tensors[:most]:
            place = f" from {t.line}" if t.line else ""
            what = f"gradient of {t.name}" if t.kind == "gradient" and t.name else t.name or t.kind
            lines.append(f"{_size(t.bytes):>12}  {t.type}  {what}{place}")
        if self.temporaries and self.temporaries[0].bytes:
            program = self.temporaries[0]
            place = f" of {program.line}" if program.line else ""
            name, more = program.program, _size(program.bytes)
            lines += ["", f'While it runs, the program "{name}"{place} needs {more} more.']
        return "\n".join(lines)


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if count >= scale:
            return f"{count / scale:.2f} {unit}"
    return f"{count / 1e3:.1f} kB"


def _sums(tensors: Iterable[LiveTensor], key: Callable[[LiveTensor], str]) -> dict[str, int]:
    sums: dict[str, int] = collections.defaultdict(int)
    for tensor in tensors:
        sums[key(tensor)] += tensor.bytes
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def memory_snapshot() -> MemorySnapshot:
    """The data on all devices, by kind and by the line that made it.

    Values that wait to be computed have no data yet: take it after `torch_xla.sync()`. A line is
    that of the call that gave the value, or of the copy to the device. Kinds are found by a walk
    over the modules and optimizers of the process.

    Example:
        >>> print(torch_xla.debug.memory_snapshot())
    """
    known = _known()
    tensors = []
    for data in _XLAC._xla_live_data():
        kind, name = known.get(data["id"], ("other", ""))
        tensors.append(
            LiveTensor(
                bytes=data["bytes"],
                type=data["type"],
                kind=kind,
                name=name,
                line=data["line"],
                module=data["scope"],
                device=data["device"],
            )
        )
    tensors.sort(key=lambda t: -t.bytes)
    temporaries = [Temporaries(*t) for t in _XLAC._xla_temporaries()]
    return MemorySnapshot(tensors, sorted(temporaries, key=lambda t: -t.bytes))


def _known() -> dict[int, tuple[str, str]]:
    """Kind and name of the data of parameters, gradients and optimizer state."""
    known: dict[int, tuple[str, str]] = {}

    def add(tensor: Any, kind: str, name: str = "") -> None:
        plain = type(tensor) is torch.Tensor or issubclass(type(tensor), torch.nn.Parameter)
        if plain and tensor.device.type == "xla":
            known.setdefault(_XLAC._xla_data_id(tensor), (kind, name))

    modules, optimizers, parameters = [], [], []
    classes = (torch.nn.Module, torch.optim.Optimizer, torch.nn.Parameter)
    for thing in _XLAC._xla_objects_of(classes):
        kind = type(thing)  # isinstance would ask proxies, whose objects may be gone
        if issubclass(kind, torch.nn.Module):
            modules.append(thing)
        elif issubclass(kind, torch.optim.Optimizer):
            optimizers.append(thing)
        else:
            parameters.append(thing)
    inner = {id(child) for module in modules for child in _children(module)}
    for module in modules:
        if id(module) in inner:
            continue
        root = type(module).__name__
        # One that is half made, or whose attributes raise, has none.
        with contextlib.suppress(Exception):
            for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
                add(tensor, "parameter", f"{root}.{name}")
                add(_gradient(tensor), "gradient", f"{root}.{name}")
    for parameter in parameters:
        add(parameter, "parameter")
        add(_gradient(parameter), "gradient")
    for optimizer in optimizers:
        with contextlib.suppress(Exception):
            for state in optimizer.state.values():
                for value in leaves([*state.values()]):  # of LBFGS in lists
                    add(value, "optimizer state")
    known.pop(0, None)
    return known


def _children(module: torch.nn.Module) -> list[torch.nn.Module]:
    try:
        return list(module.children())
    except Exception:  # half made
        return []


def _gradient(tensor: torch.Tensor) -> torch.Tensor | None:
    return tensor.grad if tensor.is_leaf else None  # PyTorch warns of the others
