"""The figures of a run that `torch_xla.debug.report` shows."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys
import time
from typing import TYPE_CHECKING

import torch

from torch_xla import _XLAC
from torch_xla._src.device.memory import MemoryInfo, memory_info
from torch_xla._src.insight import explain
from torch_xla._src.insight.explain import Recompile, Wait
from torch_xla._src.insight.recording import Counts, Program, Recording, last
from torch_xla._src.insight.split_parameters import SplitParameter, split_parameters
from torch_xla._src.report import charts as report_charts
from torch_xla.version import __version__

if TYPE_CHECKING:
    from torch_xla._src.insight.cost import Cost
    from torch_xla._src.insight.memory_snapshot import MemorySnapshot


@dataclasses.dataclass(frozen=True)
class Cause:
    """Something that took time.

    Attributes:
        kind: "compile", "wait", "host", "upload" or "lower".
        what: In words.
        line: Of the program, "" where none is known.
        seconds: In all, of `count` times; 0 where they were not counted.
    """

    kind: str
    what: str
    line: str
    seconds: float
    count: int


@dataclasses.dataclass(frozen=True)
class RunReport:
    """The contents of the page.

    Attributes:
        program: The name of the program.
        made: When, in seconds since the epoch.
        facts: What ran it: pairs of a word and its value.
        recording: None where nothing was recorded.
        seconds: The wall time of the recording, or since the import of torch_xla.
        steps: Barriers; None where they were not counted.
        compiled: How many programs the compiler made, and `compile_seconds` what it took.
        wait_seconds: That the main thread waited; where nothing was recorded, all lines.
        memory: Of the fullest device; None where no device was used.
        causes: The longest first.
        host_operators: Name and count of the operators that ran on the host.
        snapshot: What lies in the memory now, None where that is not known.
    """

    program: str
    made: float
    facts: list[tuple[str, str]]
    recording: Recording | None
    seconds: float
    steps: int | None
    compiled: int
    compile_seconds: float
    wait_seconds: float
    memory: MemoryInfo | None
    causes: list[Cause]
    recompiles: list[Recompile]
    waits: list[Wait]
    programs: list[Program]
    cost: Cost | None
    snapshot: MemorySnapshot | None
    host_operators: list[tuple[str, int]]
    split: list[SplitParameter]


def collect(cost: Cost | None = None) -> RunReport:
    """The facts about the run."""
    recording = last()
    counts = Counts()
    if recording is not None:
        recording.catch_up()
        counts = (recording.after or counts).since(recording.before)
        seconds = (recording.until - recording.began) / 1e9
        programs = list(recording.programs.values())
        compiled = sum(p.compiled for p in programs)
        compile_seconds = sum(p.compile_seconds for p in programs)
    else:
        seconds = explain.seconds_of_run()
        compiled, compile_seconds = _compiled()
        programs = []
    programs.sort(key=lambda p: -(p.run_seconds + p.compile_seconds))
    return RunReport(
        program=_program(),
        made=time.time(),
        facts=_facts(),
        recording=recording,
        seconds=seconds,
        steps=recording.steps.count if recording is not None else None,
        compiled=compiled,
        compile_seconds=compile_seconds,
        wait_seconds=_waited(recording, counts),
        memory=_memory(),
        causes=_causes(recording, counts, compile_seconds),
        recompiles=counts.recompiles,
        waits=counts.waits,
        programs=programs,
        cost=cost,
        snapshot=_snapshot(),
        host_operators=sorted(counts.host.items(), key=lambda item: -item[1]),
        split=_split(recording),
    )


def _program() -> str:
    name = sys.argv[0] if sys.argv else ""
    return os.path.basename(name) if name not in ("", "-", "-c", "-m") else "Python"


def _facts() -> list[tuple[str, str]]:
    facts = [
        ("torch_xla", __version__),
        ("torch", torch.__version__),
        ("Python", platform.python_version()),
    ]
    if _XLAC._xla_is_initialized():
        count = _XLAC._xla_num_real_devices()
        devices = "1 device" if count == 1 else f"{count} devices"
        facts.insert(0, ("Device", f"{_XLAC._xla_device_type()}, {devices}"))
    return facts


def _compiled() -> tuple[int, float]:
    data = _XLAC._xla_metric_data("CompileTime")
    return (data[0], data[1] / 1e9) if data else (0, 0.0)


def _causes(recording: Recording | None, counts: Counts, compile_seconds: float) -> list[Cause]:
    causes = [
        Cause("host" if explain.ran_on_host(w.why) else "wait", w.why, w.place, w.seconds, w.count)
        for w in counts.waits
    ]
    if recording is not None:
        for line, (count, taken) in recording.compiled_at.items():
            causes.append(Cause("compile", "compiling", line, taken, int(count)))
        for kind, what in (("lower", "lowering"), ("upload", "uploads")):
            taken = sum(t.seconds.get(kind, 0.0) for t in recording.tracks.values())
            if taken > 0:
                causes.append(Cause(kind, what, "", taken, 0))
    elif compile_seconds > 0:
        again: dict[str, list[float]] = {}
        for r in counts.recompiles:
            if not r.from_disk:
                again.setdefault(r.place, []).append(r.seconds)
        for line, each in again.items():
            causes.append(Cause("compile", "compiling again", line, sum(each), len(each)))
        first = compile_seconds - sum(sum(each) for each in again.values())
        causes.append(Cause("compile", "compiling for the first time", "", max(0.0, first), 0))
    return sorted(causes, key=lambda c: -c.seconds)


def _waited(recording: Recording | None, counts: Counts) -> float:
    if recording is None:
        return sum(w.seconds for w in counts.waits)
    seconds = dict(report_charts.kind_seconds(recording))
    return seconds.get("wait", 0.0) + seconds.get("host", 0.0)


def _memory() -> MemoryInfo | None:
    if not _XLAC._xla_is_initialized():
        return None
    infos = [memory_info(device) for device in _XLAC._xla_get_devices()]
    return max(infos, key=lambda info: info["peak_bytes_used"], default=None)


def _snapshot() -> MemorySnapshot | None:
    if not _XLAC._xla_is_initialized():
        return None
    from torch_xla._src.insight.memory_snapshot import memory_snapshot

    return memory_snapshot()


def _split(recording: Recording | None) -> list[SplitParameter]:
    """Those of now, or of a model that is gone."""
    now = split_parameters() if _XLAC._xla_is_initialized() else []
    return now or (recording.split if recording is not None else [])
