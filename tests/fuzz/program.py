"""A program is a list of steps of plain Python source; `run` runs it on one device and keeps what
it saw: errors, what the program read, metadata of tensors after each step, values at the end."""

from __future__ import annotations

import builtins
import functools
import re
import threading
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

NAME = re.compile(r"\b[to]\d+\b")


@dataclass(frozen=True)
class Step:
    """`line` may use `torch`, `F`, `device`, `sync()`, `show(...)`, t1.. (tensors), o1..
    (optimizers). Adjacent steps of threads 1 and 2 run in two threads beside each other; 0 is the
    main thread."""

    kind: str
    line: str
    thread: int = 0

    @functools.cached_property
    def names(self) -> set[str]:
        return set(NAME.findall(self.line))


Program = tuple[Step, ...]


@dataclass
class Seen:
    """What one step did: the class of its error, what it showed, and the tensors after it."""

    error: str = ""
    message: str = ""
    shown: list[Any] = field(default_factory=list)
    tensors: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass
class Trace:
    steps: list[Seen]
    end: dict[str, Any] = field(default_factory=dict)


@functools.lru_cache(maxsize=20_000)
def compiled(line: str):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return compile(line, line, "exec")


def new_names(device: str) -> dict[str, Any]:
    """The names a program starts with, on the CPU or on xla."""

    def sync(wait: bool = False) -> None:
        if device != "cpu":
            import torch_xla

            torch_xla.sync(wait=wait)

    names = {"torch": torch, "F": F, "device": device, "sync": sync, "show": lambda *values: None}
    return {**names, "compiled": functools.partial(compiled_by, device)}


def compiled_by(device: str, function: Callable) -> Callable:
    """By `openxla`, or the CPU's kernels as PyTorch registers it: both save the same."""
    return _compiled_code(device, function.__code__)


@functools.lru_cache(maxsize=2_000)
def _compiled_code(device: str, code: types.CodeType) -> Callable:
    # Globals and code of its own: torch._dynamo keeps what it compiled with both.
    names = {"torch": torch, "__builtins__": builtins}
    function = types.FunctionType(code.replace(), names)
    torch._dynamo.config.recompile_limit = 64
    return torch.compile(function, backend="openxla" if device != "cpu" else _on_cpu())


@functools.cache
def _on_cpu() -> Callable:
    from torch._dynamo.backends.common import aot_autograd
    from torch._dynamo.backends.debugging import boxed_nop

    return aot_autograd(fw_compiler=boxed_nop)


def tensors_of(names: dict[str, Any], visible: set[str] | None = None) -> dict[str, torch.Tensor]:
    return {
        name: value
        for name, value in names.items()
        if isinstance(value, torch.Tensor)
        and NAME.fullmatch(name)
        and (visible is None or name in visible)
    }


ASKED: dict[str, Callable[[torch.Tensor], Any]] = {
    "dtype": lambda t: t.dtype,
    "shape": lambda t: tuple(t.shape),
    # Where there is one element or none, a stride says nothing.
    "stride": lambda t: tuple(
        s for s, n in zip(t.stride(), t.shape, strict=True) if n != 1 and t.numel()
    ),
    "storage_offset": lambda t: t.storage_offset(),
    "_version": lambda t: None if t.is_inference() else t._version,
    "requires_grad": lambda t: t.requires_grad,
    "is_leaf": lambda t: t.is_leaf,
    # Not is_conj() and is_neg(): conj() gives values on xla, where the CPU sets a bit.
    "has a gradient": lambda t: gradient(t) is not None,
}


def gradient(t: torch.Tensor) -> torch.Tensor | None:
    return t.grad if t.is_leaf or t.retains_grad else None


def metadata(tensors: dict[str, torch.Tensor]) -> dict[str, dict[str, Any]]:
    """What can be asked without a value, and which tensors share memory (the first one's name)."""
    owners: dict[int, str] = {}
    found = {}
    for name, t in sorted(tensors.items()):  # threads make theirs in any order
        storage = t.untyped_storage()
        known = {"shares memory with": name}
        if storage.nbytes():
            known["shares memory with"] = owners.setdefault(storage.data_ptr(), name)
        for what, ask in ASKED.items():
            try:
                known[what] = ask(t)
            except (RuntimeError, IndexError):  # a view that a write made useless
                known[what] = "refused"
        found[name] = known
    return found


def on_host(value: Any) -> Any:
    """A copy that later writes do not reach; reads tensors of xla."""
    if isinstance(value, torch.Tensor):
        with torch.no_grad():
            return value.detach().cpu().resolve_conj().resolve_neg().clone()
    if isinstance(value, (list, tuple)):
        return [on_host(v) for v in value]
    return value


def parts(program: Sequence[Step]) -> Iterator[list[tuple[int, Step]]]:
    """Steps of the main thread one by one; those of threads 1 and 2 together."""
    together: list[tuple[int, Step]] = []
    for i, step in enumerate(program):
        if step.thread:
            together.append((i, step))
            continue
        if together:
            yield together
            together = []
        yield [(i, step)]
    if together:
        yield together


# Makes what is called with the tensors on the device after each step of a program, if set.
between_steps: Callable[[Sequence[Step]], Callable[[dict[str, torch.Tensor]], None]] | None = None


class Runner:
    """Runs steps on one device. `noise`, a generator, moves what a step makes or writes by about
    its rounding error: what such a run changes much says nothing about a device."""

    def __init__(self, device: str, noise: torch.Generator | None = None):
        self.device = device
        self.names = new_names(device)
        self.names["show"] = self.show
        self.trace = Trace([])
        self._at = threading.local()
        self._main_step = 0
        self._noise = noise
        self._after_step: Callable[[dict[str, torch.Tensor]], None] | None = None
        self._dtypes: set[torch.dtype] = set()  # of the program so far
        # Memory, and how often it had been written: of this step, and of the one before it.
        self._moved: set[tuple[int, int]] = set()
        self._moved_before: set[tuple[int, int]] = set()

    def show(self, *values: Any) -> None:
        # A hook runs in a thread of the autograd engine, which has no step of its own.
        step = getattr(self._at, "step", self._main_step)
        self.trace.steps[step].shown.extend(on_host(v) for v in values)

    def step(self, i: int, step: Step, visible: set[str] | None = None) -> Seen:
        seen = self.trace.steps[i]
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(compiled(step.line), self.names)
        except Exception as error:
            seen.error, seen.message = type(error).__name__, str(error)
        tensors = tensors_of(self.names.copy(), visible)
        if self._noise is not None:
            self._disturb(tensors)
        if self._after_step is not None:
            self._after_step(tensors)
        seen.tensors = metadata(tensors)
        return seen

    def append(self, step: Step, visible: set[str] | None = None) -> Seen:
        """One more step, without threads: for who draws a program."""
        self.trace.steps.append(Seen())
        self._main_step = len(self.trace.steps) - 1
        return self.step(self._main_step, step, visible)

    def run(self, program: Sequence[Step]) -> Trace:
        self.trace.steps = [Seen() for _ in program]
        if self.device != "cpu" and between_steps is not None:
            self._after_step = between_steps(program)
        for part in parts(program):
            if len(part) == 1 and not part[0][1].thread:
                self._main_step = part[0][0]
                self.step(*part[0])
            else:
                self._beside(part)
        self._read_all()
        return self.trace

    def _beside(self, part: list[tuple[int, Step]]) -> None:
        own = [[(i, s) for i, s in part if s.thread == thread] for thread in (1, 2)]

        def work(steps: list[tuple[int, Step]]) -> None:
            visible = set().union(*(s.names for _, s in steps))
            for i, step in steps:
                self._at.step = i
                self.step(i, step, visible)

        threads = [threading.Thread(target=work, args=(steps,)) for steps in own if steps]
        for thread in threads:
            thread.start()
            if self.device == "cpu":
                thread.join()
        for thread in threads:
            thread.join()

    def _read_all(self) -> None:
        end = self.trace.end
        for name, t in tensors_of(self.names).items():
            for what, take in ((name, lambda t: t), (f"{name}.grad", gradient)):
                try:
                    value = take(t)
                    if value is not None:
                        end[what] = on_host(value)
                except Exception as error:
                    end[what] = f"{type(error).__name__}: {error}"

    def _disturb(self, tensors: dict[str, torch.Tensor]) -> None:
        self._dtypes |= {t.dtype for t in tensors.values()} & UNIT.keys()
        self._moved_before, self._moved = self._moved, set()  # what is gone gives its address away
        for t in tensors.values():
            self._move(t, UNIT.get(t.dtype))
            # A compiler may round less often than a backward pass says, in any dtype on its way.
            try:
                found = gradient(t)
            except (RuntimeError, IndexError):  # such a view does not even say is_leaf
                continue
            self._move(found, max((UNIT[d] for d in self._dtypes), default=None))

    def _move(self, t: torch.Tensor | None, unit: float | None) -> None:
        if t is None or unit is None or t.dtype not in UNIT or not t.numel():
            return
        written = 0 if t.is_inference() else t._version
        at = (t.untyped_storage().data_ptr(), written)
        if at in self._moved:
            return
        self._moved.add(at)
        if at in self._moved_before:
            return
        with torch.no_grad():
            memory = torch.empty(0, dtype=t.dtype).set_(t.untyped_storage())
            # Of many sizes: noise of one step must not undo that of another. One for all elements
            # now and then, since equal ones may stay equal.
            alike, cancelled = torch.rand(2, generator=self._noise) < 0.5
            shape = () if alike else memory.shape
            sign = torch.randint(0, 2, shape, generator=self._noise) * 2 - 1
            size = 0.5 + torch.rand(shape, generator=self._noise, dtype=torch.float64)
            memory.copy_(memory * (1 + sign * size * unit))
            # What a difference of like numbers leaves may be nothing as well.
            if cancelled:
                memory[memory.abs() < min(40 * unit, 1e-2)] = 0


# A few units in the last place.
UNIT = {
    torch.float64: 1e-15,
    torch.float32: 5e-7,
    torch.bfloat16: 8e-3,
    torch.float16: 1e-3,
    torch.complex64: 5e-7,
    torch.complex128: 1e-15,
}


def run(program: Sequence[Step], device: str, noise: torch.Generator | None = None) -> Trace:
    return Runner(device, noise).run(program)


def text(program: Sequence[Step]) -> str:
    return "\n".join(("", "1| ", "2| ")[s.thread] + s.line for s in program)


def script(programs: Sequence[Program], guarded: set[str]) -> str:
    """Python source that runs the programs on both devices and prints what they show and end with.
    Lines in `guarded` may raise."""
    lines = ["import torch", "import torch.nn.functional as F", "", "import torch_xla", ""]
    if any(step.thread for program in programs for step in program):
        lines.insert(0, "import threading\n")
    lines += ["show = print"]

    def add(step: Step, indent: str) -> None:
        if step.line not in guarded:
            lines.append(indent + step.line)
            return
        lines.append(f"{indent}try:\n{indent}    {step.line}")
        lines.append(f"{indent}except Exception as error:\n{indent}    show(repr(error))")

    if any("compiled(" in step.line for program in programs for step in program):
        lines += [
            "from torch._dynamo.backends.common import aot_autograd",
            "from torch._dynamo.backends.debugging import boxed_nop",
            "on_cpu = aot_autograd(fw_compiler=boxed_nop)",
            'backend_of = {"cpu": on_cpu, "xla": "openxla"}',
            "compiled = lambda f: torch.compile(f, backend=backend_of[device])",
        ]

    for program in programs:
        lines += ['for device in ("cpu", "xla"):', '    print("---", device)']
        if any("sync" in step.line for step in program):
            lines.append('    on_cpu = device == "cpu"')
            lines.append("    sync = (lambda wait=False: None) if on_cpu else torch_xla.sync")
        names = sorted(set().union(*(step.names for step in program)), key=lambda n: int(n[1:]))
        for part in parts(program):
            if not part[0][1].thread:
                add(part[0][1], "    ")
                continue
            for thread in (1, 2):
                own = [step for _, step in part if step.thread == thread]
                lines.append(f"    def part{thread}(device=device):")
                uses = sorted(set().union(*(step.names for step in own)))
                lines += [f"        global {', '.join(uses)}"] if uses else ["        pass"]
                for step in own:
                    add(step, "        ")
            lines.append("    threads = [threading.Thread(target=f) for f in (part1, part2)]")
            lines.append("    for thread in threads: thread.start()")
            lines.append("    for thread in threads: thread.join()")
        lines.append(f"    for name in {' '.join(names)!r}.split():")
        lines.append("        t = globals().pop(name, None)")
        lines.append("        if isinstance(t, torch.Tensor):")
        lines.append("            print(name, t.stride(), t._version, t.detach().cpu(), t.grad)")
    return "\n".join(lines) + "\n"
