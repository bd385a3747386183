"""The loops that XLA has compiled for the CPU, as events of a profile.

Its plugin makes no profile. So the system notes where threads are (`csrc/cpu/sampler.h`), and
what they were executing is looked for in what the plugin saves of a program: an ELF object for each
kernel, named like the instruction of the compiled program. The code in memory is that of an object
but for the addresses that were filled in, by which a kernel is known, whether the program was
compiled or came from a cache. Of kernels with equal code, that of the program which ran is meant.
"""

from __future__ import annotations

import bisect
import dataclasses
import io
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch_xla import _XLAC

_ELF = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian
_FILLED_IN = 8  # bytes of an address
_LEAST = 16  # bytes without an address by which code is looked for
_MISSED = 2.5  # periods without a sample within one event


def start_sampling() -> bool:
    """Begins, where programs run on the CPU.

    Raises:
        ImportError: The package `pyelftools` is not there.
    """
    if _XLAC._xla_device_type() != "CPU":
        return False
    _elf_file()
    _XLAC._xla_start_sampling()
    return True


def stop_sampling(tracks: list[dict[str, Any]]) -> None:
    """Ends that, and adds the kernels' events to the tracks of `_XLAC._xla_stop_trace`."""
    samples = _XLAC._xla_stop_sampling()
    runs = sorted(_runs(tracks), key=lambda run: run.begin)
    memory = _Memory(samples, {run.graph: run.program for run in runs})
    by_thread: dict[int, list[tuple[int, _Kernel | None]]] = {}
    for (when, thread, address), graphs in _with_running(samples, runs):
        by_thread.setdefault(thread, []).append((when, memory.kernel_at(address, graphs)))
    known = {track["id"]: track for track in tracks if not track["is_device"]}
    for thread, found in by_thread.items():
        track = known.get(thread)
        events = list(_events(found, track["events"] if track else []))
        if not events:
            continue
        if track is None:
            track = {"name": _name_of(thread), "id": thread, "is_device": False, "events": []}
            tracks.append(track)
        track["events"] += events


@dataclasses.dataclass(frozen=True)
class _Run:
    """A run of a program on a device, or its launch, in which it may have begun."""

    begin: int
    end: int
    graph: str
    program: str


def _runs(tracks: Iterable[Mapping[str, Any]]) -> Iterator[_Run]:
    for track in tracks:
        for name, begin, end, details in track["events"]:
            told = dict(details)
            if track["is_device"]:
                yield _Run(begin, end, told["graph"], name)
            elif name == "launch" and "graph" in told and "program" in told:  # and not the user's
                yield _Run(begin, end, told["graph"], f"{told['program']} {told['graph'][:8]}")


def _with_running(
    samples: Iterable[tuple[int, int, int]], runs: Sequence[_Run]
) -> Iterator[tuple[tuple[int, int, int], frozenset[str]]]:
    """The samples in the order of time, each with the graphs of the programs that ran then."""
    running: list[_Run] = []
    graphs: frozenset[str] = frozenset()
    started = 0
    for sample in sorted(samples):
        when = sample[0]
        changed = False
        while started < len(runs) and runs[started].begin <= when:
            running.append(runs[started])
            started += 1
            changed = True
        if changed or any(run.end < when for run in running):
            running = [run for run in running if run.end >= when]
            graphs = frozenset(run.graph for run in running)
        yield sample, graphs


def _elf_file() -> Any:
    try:
        from elftools.elf.elffile import ELFFile
    except ImportError as e:
        raise ImportError(
            "torch_xla.debug.profiler: expected the package pyelftools, which reads the code of "
            "the CPU's programs. Install it with `pip install torch_xla[profiler]`."
        ) from e
    return ELFFile


@dataclasses.dataclass(frozen=True, eq=False)
class _Kernel:
    """A kernel of a program: `parts` are its bytes without the addresses that are filled in, each
    with its place."""

    name: str
    graph: str
    program: str
    origin: tuple[str, str]
    size: int
    parts: tuple[tuple[int, bytes], ...]

    def details(self, samples: int) -> list[tuple[str, str]]:
        operation, line = self.origin
        # Without XLA_HLO_DEBUG lines are those of the program's text.
        is_told = line and not line.startswith("-:")
        origin = [("operation", operation), ("line", line)] if is_told else []
        return [("program", self.program), *origin, ("samples", str(samples))]


def _kernels_of(graph: str, program: str) -> Iterator[_Kernel]:
    """Those of a program that is still there."""
    try:
        executables = _XLAC._xla_code_of_program(graph)
    except RuntimeError as e:  # XLA saves no program with a sort
        warnings.warn(
            f"torch_xla.debug.profiler: the loops of {program} are missing: {e}", stacklevel=2
        )
        return
    for saved, origins in executables:
        start = saved.find(_ELF)
        while start >= 0:
            end = saved.find(_ELF, start + 1)
            elf = _elf_file()(io.BytesIO(saved[start : end if end > 0 else None]))
            for name, size, parts in _functions(elf):
                yield _Kernel(name, graph, program, origins.get(name, ("", "")), size, parts)
            start = end


def _functions(elf: Any) -> Iterator[tuple[str, int, tuple[tuple[int, bytes], ...]]]:
    from elftools.elf.relocation import RelocationSection

    filled: dict[int, list[int]] = {}
    for section in elf.iter_sections():
        if isinstance(section, RelocationSection):
            places = (r["r_offset"] for r in section.iter_relocations())
            filled.setdefault(section["sh_info"], []).extend(places)
    for symbol in elf.get_section_by_name(".symtab").iter_symbols():
        where = symbol["st_shndx"]
        if symbol["st_info"]["type"] != "STT_FUNC" or not isinstance(where, int):
            continue
        begin, size = symbol["st_value"], symbol["st_size"]
        code = elf.get_section(where).data()[begin : begin + size]
        inside = [p - begin for p in filled.get(where, []) if begin <= p < begin + size]
        yield symbol.name, size, tuple(_between(code, sorted(inside)))


def _between(code: bytes, places: Iterable[int]) -> Iterator[tuple[int, bytes]]:
    start = 0
    for place in (*places, len(code)):
        if place > start:
            yield start, code[start:place]
        start = place + _FILLED_IN


class _Memory:
    """Where in memory the kernels of programs are that threads were seen in."""

    def __init__(self, samples: Iterable[tuple[int, int, int]], programs: Mapping[str, str]):
        regions = _code_without_file()
        begins = [begin for begin, _ in regions]
        seen = set()
        for *_, address in samples:
            i = bisect.bisect(begins, address) - 1
            if i >= 0 and address < regions[i][1]:
                seen.add(regions[i])
        # By where it begins: the end, and the kernels that have this code.
        places: dict[int, tuple[int, list[_Kernel]]] = {}
        if seen:
            wanted = [k for graph, name in programs.items() for k in _kernels_of(graph, name)]
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                for begin, end in seen:
                    code = os.pread(memory.fileno(), end - begin, begin)
                    for at, kernel in _in(code, wanted):
                        place = places.setdefault(begin + at, (begin + at + kernel.size, []))
                        place[1].append(kernel)
        self._begins = sorted(places)
        self._places = [places[begin] for begin in self._begins]
        self._chosen: dict[tuple[int, frozenset[str]], _Kernel] = {}

    def kernel_at(self, address: int, graphs: frozenset[str]) -> _Kernel | None:
        """The kernel that is executed at an address while programs of these graphs run."""
        i = bisect.bisect(self._begins, address) - 1
        if i < 0 or address >= self._places[i][0]:
            return None
        if (i, graphs) not in self._chosen:
            alike = self._places[i][1]
            running = [k for k in alike if k.graph in graphs]
            self._chosen[i, graphs] = _one_of(running or alike)
        return self._chosen[i, graphs]


def _one_of(kernels: Sequence[_Kernel]) -> _Kernel:
    """Kernels with equal code as one, of which is told what they have in common."""
    first = kernels[0]
    if len(kernels) == 1:
        return first
    origin = first.origin if len({k.origin for k in kernels}) == 1 else ("", "")
    programs = " or ".join(dict.fromkeys(k.program for k in kernels))
    name = f"{first.name} or {len(kernels) - 1} like it"
    return dataclasses.replace(first, name=name, program=programs, origin=origin)


def _code_without_file() -> list[tuple[int, int]]:
    """The parts of memory that have code which was made here."""
    found = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            fields = line.split()
            if "x" in fields[1] and len(fields) == 5:
                begin, end = fields[0].split("-")
                found.append((int(begin, 16), int(end, 16)))
    return found


def _in(code: bytes, wanted: Iterable[_Kernel]) -> Iterator[tuple[int, _Kernel]]:
    """The kernels that are in a piece of memory, each with its places."""
    for kernel in wanted:
        offset, anchor = max(kernel.parts, key=lambda part: len(part[1]), default=(0, b""))
        at = code.find(anchor) if len(anchor) >= _LEAST else -1
        while at >= 0:
            begin = at - offset
            if begin >= 0 and _is_at(code, begin, kernel):
                yield begin, kernel
            at = code.find(anchor, at + 1)


def _is_at(code: bytes, begin: int, kernel: _Kernel) -> bool:
    return all(code.startswith(part, begin + offset) for offset, part in kernel.parts)


def _events(
    samples: Sequence[tuple[int, _Kernel | None]], others: Sequence[tuple]
) -> Iterator[tuple]:
    """Samples of one thread as events: those of one kernel that follow each other are one. None
    reaches over the begin or end of another event of the thread."""
    bounds = sorted(bound for _, begin, end, _ in others for bound in (begin, end))
    period = _XLAC._xla_sample_period
    i = free = 0
    while i < len(samples):
        first, kernel = samples[i]
        last, count = first, 1
        while i + count < len(samples):
            when, following = samples[i + count]
            near = when - last <= _MISSED * period
            if following is not kernel or not near or _bound(bounds, last, when) is not None:
                break
            last, count = when, count + 1
        if kernel is not None:
            begin, end = first - period // 2, last + period // 2
            before, after = bisect.bisect(bounds, first), _bound(bounds, last, end)
            begin = max(begin, free, *bounds[max(0, before - 1) : before])
            free = end if after is None else after
            yield kernel.name, begin, free, kernel.details(count)
        i += count


def _bound(bounds: list[int], begin: int, end: int) -> int | None:
    """The first bound after `begin` and not after `end`."""
    i = bisect.bisect(bounds, begin)
    return bounds[i] if i < len(bounds) and bounds[i] <= end else None


def _name_of(thread: int) -> str:
    try:
        with open(f"/proc/self/task/{thread}/comm") as name:
            return name.read().strip()
    except OSError:  # it has ended
        return f"thread {thread}"
