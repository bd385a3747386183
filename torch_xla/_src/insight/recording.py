"""The time of a run, added up for `torch_xla.debug.report` while a `record()` is on.

The extension keeps the spans of each thread and device. They are fetched from it now and then and
added up, so that a long run takes no more memory than a short one.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from torch_xla import _XLAC
from torch_xla._src.device.memory import memory_info
from torch_xla._src.functions import step
from torch_xla._src.insight import explain
from torch_xla._src.insight.explain import Wait
from torch_xla._src.insight.split_parameters import SplitParameter, split_parameters

_SECONDS = 10.0  # between two fetches where there are no barriers
_FETCH = 0.5  # where there are
_POINTS = 1_000  # of a curve
_PARTS = 240  # of the whole time
_PROGRAMS = 2_000
_FOR_COMPILER = "wait for the compiler"  # which works on a thread of its own
_KINDS = {
    "sync": "sync",
    "lower": "lower",
    "compile": "compile",
    "launch": "launch",
    "upload": "upload",
    "TransferFromDevice": "wait",
    _FOR_COMPILER: "compile",
}


@dataclasses.dataclass(frozen=True)
class Span:
    """Work of a thread or a device from `begin` to `end`, in nanoseconds since the epoch.

    Attributes:
        kind: "sync", "lower", "compile", "launch", "upload", "wait", "host" (an operator that ran
            there) or "run" (of a program on a device).
    """

    begin: int
    end: int
    kind: str


@dataclasses.dataclass
class Program:
    """A program that was compiled or run; `key` begins its graph's hash."""

    key: str
    name: str
    line: str
    calls: int = 0
    compiled: int = 0
    compile_seconds: float = 0.0
    launched: int = 0
    runs: int = 0
    run_seconds: float = 0.0


class Curve:
    """Values over time. Of too many points next to each other the highest is kept."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []
        self.count = 0
        self._each = 1  # so many points become one
        self._pending = 0

    def add(self, when: int, value: float) -> None:
        self.count += 1
        if self._pending and self.points[-1][1] >= value:
            pass
        elif self._pending:
            self.points[-1] = (when, value)
        else:
            self.points.append((when, value))
        self._pending = (self._pending + 1) % self._each
        if len(self.points) > 2 * _POINTS and self._pending == 0:
            pairs = zip(self.points[::2], self.points[1::2], strict=False)
            self.points = [max(pair, key=lambda point: point[1]) for pair in pairs]
            self._each *= 2


class Density:
    """The shares of each part of the time, by kind of work. The parts grow with the run."""

    def __init__(self, start: int) -> None:
        self.start = start
        self.width = 1_000_000  # nanoseconds of a part
        self.rows: dict[tuple[int, str], list[float]] = {}

    def add(self, row: tuple[int, str], begin: int, end: int) -> None:
        begin, end = max(begin - self.start, 0), end - self.start
        while end > self.width * _PARTS:
            self.width *= 2
            for key, parts in self.rows.items():
                pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=True)]
                self.rows[key] = pairs + [0.0] * (_PARTS - len(pairs))
        parts = self.rows.setdefault(row, [0.0] * _PARTS)
        while begin < end:
            part = begin // self.width
            until = min(end, (part + 1) * self.width)
            parts[part] += until - begin
            begin = until


class Track:
    """The spans of one thread or device.

    Attributes:
        seconds: By kind; what a span spends in those within it is not in its own kind.
        count: The number of spans.
    """

    def __init__(self, name: str, is_device: bool) -> None:
        self.name = name
        self.is_device = is_device
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self.count = 0
        self.counted: list[Span] = []  # whose time is in `seconds`, and which no other contains


def exclusive(spans: Iterable[Span]) -> Iterator[tuple[int, int, Span]]:
    """The pieces of time of spans, in order, without those of the spans within each."""
    open_: list[Span] = []
    now = 0
    for span in spans:
        while open_ and open_[-1].end <= span.begin:
            ended = open_.pop()
            if now < ended.end:
                yield now, ended.end, ended
                now = ended.end
        if open_ and now < span.begin:
            yield now, span.begin, open_[-1]
        now = max(now, span.begin)
        open_.append(span)
    while open_:
        ended = open_.pop()
        if now < ended.end:
            yield now, ended.end, ended
            now = ended.end


class Recording:
    """Keeps the time and the memory of a run, from `start()` to `stop()` or in a `with` block.

    `torch_xla.debug.report` writes them, inside or afterwards. A recording is used once.
    """

    def __init__(self) -> None:
        self.began = self.ended = 0  # nanoseconds since the epoch
        self.tracks: dict[tuple[bool, int], Track] = {}
        self.programs: dict[str, Program] = {}
        self.compiled_at: dict[str, list[float]] = {}  # by line: how often, and seconds
        self.steps = Curve()  # seconds of each
        self.newest_steps: collections.deque[float] = collections.deque(maxlen=1000)
        self.used, self.live = Curve(), Curve()  # bytes of the device, and of tensors
        self.snapshots: list[tuple[int, Any]] = []  # memory by kind over time
        self.peak: tuple[int, Any] | None = None  # the snapshot with the most
        self.split: list[SplitParameter] = []  # parameters over devices
        self.broken = ""  # why it ends early
        self.trouble = ""  # why the memory was not seen, the last time
        self.before = Counts()
        self.after: Counts | None = None
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self._last_step = self._last_fetch = self._asked = 0
        self._sample_from = self._snapshot_from = self._peak_from = 0

    def __enter__(self) -> Recording:
        return self.start()

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:
        try:
            self.stop()
        except RuntimeError:
            if type is None:
                raise

    @property
    def is_on(self) -> bool:
        return self is _current

    def start(self) -> Recording:
        """Begins to keep what the run does.

        Raises:
            RuntimeError: A recording or a profile is on already, or this one has ended.
        """
        global _current, _last
        if self.began:
            raise RuntimeError(
                "record: expected a recording that has not begun, got one that has. Call "
                "torch_xla.debug.record() for another."
            )
        with _switch:
            if _current is not None:
                raise RuntimeError(f"record: expected no other recording, got {_whose()}.")
            try:
                _XLAC._xla_start_trace()
            except RuntimeError as error:
                if not _XLAC._xla_is_tracing():
                    raise
                raise RuntimeError(
                    "record: expected that no profile is being recorded, got one of "
                    "torch_xla.debug.profiler. Both keep the same events: stop it first."
                ) from error
            self.before = Counts()
            self.began = self._last_step = self._last_fetch = time.time_ns()
            self.density = Density(self.began)
            _current = _last = self
            step.on_barrier = self._at_barrier
        threading.Thread(target=self._watch, name="torch_xla record", daemon=True).start()
        return self

    def stop(self) -> None:
        """Ends that. Without effect where it has ended. Waits for what the devices are running.

        Raises:
            RuntimeError: What was running failed. It has ended nevertheless.
        """
        global _current
        with _switch, self._lock:
            if _current is not self:
                return
            self.after = Counts()
            self._asked = time.time_ns()
            try:
                if _XLAC._xla_is_initialized():
                    _XLAC._xla_wait_device_ops()  # so that the runs have ended
            finally:
                self._sample(time.time_ns(), always=True)
                self._fetch(go_on=False)
                self.ended = time.time_ns()
                step.on_barrier = None
                _current = None
                self._stopped.set()

    def catch_up(self) -> None:
        """Fetches what there is to now, if it is on."""
        with self._lock:
            if self.is_on:
                self._sample(time.time_ns(), always=True)
                self._fetch(go_on=True)

    @property
    def until(self) -> int:
        return self.ended or time.time_ns()

    def _watch(self) -> None:
        """Fetches where no barrier does."""
        while not self._stopped.wait(_SECONDS):
            with self._lock:
                now = time.time_ns()
                if self.is_on and now - self._last_fetch >= _SECONDS * 1e9:
                    self._sample(now)
                    self._fetch(go_on=True)

    def _at_barrier(self, cause: str) -> None:
        now = time.time_ns()
        with self._lock:
            if not self.is_on:
                return
            if cause != step.CLEARS:
                self.newest_steps.append((now - self._last_step) / 1e9)
                self.steps.add(now, self.newest_steps[-1])
            self._last_step = now
            self._sample(now)
            if now - self._last_fetch >= _FETCH * 1e9:
                self._fetch(go_on=True)

    def _sample(self, now: int, always: bool = False) -> None:
        """Looks at the memory, for at most a fiftieth of the time."""
        if not (always or now >= self._sample_from) or not _XLAC._xla_is_initialized():
            return
        try:
            infos = [memory_info(device) for device in _XLAC._xla_get_devices()]
            self.used.add(now, max(info["bytes_used"] for info in infos))
            live = sum(data["bytes"] for data in _XLAC._xla_live_data())
            self.live.add(now, live)
            self._sample_from = now + 50 * (time.time_ns() - now)
            most = self.peak[1].bytes if self.peak else 0
            higher = live > 1.05 * most and now >= self._peak_from
            if always or higher or now >= self._snapshot_from:
                self._snapshot(now)
            self.trouble = ""
        except Exception as error:  # the run goes on; another thread may have changed something
            self.trouble = f"{type(error).__name__}: {error}"
            self._sample_from = now + 1_000_000_000

    def _snapshot(self, now: int) -> None:
        from torch_xla._src.insight.memory_snapshot import memory_snapshot

        start = time.time_ns()
        snapshot = memory_snapshot()
        self.split = split_parameters() or self.split
        if self.peak is None or snapshot.bytes > self.peak[1].bytes:
            self.peak = (now, snapshot)
        self.snapshots.append((now, snapshot.by_kind()))
        if len(self.snapshots) > 200:
            pairs = zip(self.snapshots[::2], self.snapshots[1::2], strict=False)
            self.snapshots = [max(p, key=lambda s: sum(s[1].values())) for p in pairs]
        taken = time.time_ns() - start
        self._snapshot_from, self._peak_from = start + 50 * taken, start + 10 * taken

    def _fetch(self, go_on: bool) -> None:
        """Adds up the spans that the extension has kept."""
        self._last_fetch = time.time_ns()
        if self.broken:
            return
        try:
            tracks = _XLAC._xla_stop_trace()
            if go_on:
                _XLAC._xla_start_trace()
        except RuntimeError:
            self.broken = "Another recording took over."
            return
        waits = {w.why for w in explain.waits()}
        names = {t.native_id: t.name for t in threading.enumerate()}
        for given in tracks:
            key = (given["is_device"], given["id"])
            track = self.tracks.get(key)
            if track is None:
                name = given["name"]
                if not given["is_device"] and name != "main":
                    name = names.get(given["id"]) or name
                track = self.tracks[key] = Track(name, given["is_device"])
            self._add(track, given["id"], given["events"], waits)

    def _add(self, track: Track, id_: int, events: list[tuple], waits: set[str]) -> None:
        spans = []
        for name, begin, end, details in events:
            if end <= self.began or (self._asked and not track.is_device and begin > self._asked):
                continue  # the latter waits for the devices, so that this has their runs
            facts = dict(details)
            if track.is_device:
                kind = "run"
                begin = max(begin, track.counted[-1].end if track.counted else begin)
            else:
                kind = _KINDS.get(name) or ("wait" if name in waits else "user")
                if kind == "wait" and explain.ran_on_host(name):
                    kind = "host"
            self._count(kind, (end - begin) / 1e9, facts, name)
            if kind != "user":
                spans.append(Span(max(begin, self.began), max(end, begin), kind))
        track.count += len(events)
        if not spans:
            return
        # A span that ended only now may contain some that were counted before.
        earlier = {id(s) for s in track.counted}
        both = sorted([*track.counted, *spans], key=lambda s: (s.begin, -s.end))
        for begin, end, span in exclusive(both):
            if id(span) not in earlier:
                track.seconds[span.kind] += (end - begin) / 1e9
                self.density.add((id_ if not track.is_device else -1 - id_, span.kind), begin, end)
        track.counted = both[-1:] if track.is_device else _outermost(both)[-500:]

    def _count(self, kind: str, seconds: float, facts: dict[str, str], name: str) -> None:
        if kind not in ("compile", "launch", "run") or name == _FOR_COMPILER:
            return
        if kind == "compile":
            line = self.compiled_at.setdefault(facts.get("line", ""), [0, 0.0])
            line[0] += 1
            line[1] += seconds
        key = facts.get("graph", "")
        if key not in self.programs and len(self.programs) >= _PROGRAMS:
            key = ""
        program = self.programs.get(key)
        if program is None:
            called = (facts.get("program") or name.rpartition(" ")[0]) if key else "others"
            program = Program(key[:8], called, facts.get("line", "") if key else "")
            self.programs[key] = program
        if kind == "compile":
            program.compiled += 1
            program.compile_seconds += seconds
            program.calls = int(facts.get("calls", 0))
        elif kind == "launch":
            program.launched += 1
            program.calls = int(facts.get("calls", 0))
        else:
            program.runs += 1
            program.run_seconds += seconds


def _outermost(spans: list[Span]) -> list[Span]:
    found: list[Span] = []
    for span in spans:
        if not found or span.begin >= found[-1].end:
            found.append(span)
    return found


class Counts:
    """The counts until now."""

    def __init__(self) -> None:
        from torch_xla.debug import metrics

        self.waits = explain.waits()
        self.recompiles = explain.recompiles()
        self.host = {n: metrics.counter_value(n) or 0 for n in metrics.executed_fallback_ops()}

    def since(self, before: Counts) -> Counts:
        """The counts since `before`. Counts that were cleared meanwhile began anew."""
        had = {(w.place, w.why): w for w in before.waits}
        later = copy.copy(self)
        later.waits = []
        for w in self.waits:
            b = had.get((w.place, w.why))
            if b is not None and b.count <= w.count:
                w = Wait(w.place, w.why, w.count - b.count, max(0.0, w.seconds - b.seconds))
            if w.count:
                later.waits.append(w)
        later.waits.sort(key=lambda w: -w.seconds)
        known = {(r.place, r.number, r.key) for r in before.recompiles}
        later.recompiles = [r for r in self.recompiles if (r.place, r.number, r.key) not in known]
        later.host = {}
        for name, count in self.host.items():
            earlier = before.host.get(name, 0)
            count -= earlier if earlier <= count else 0
            if count:
                later.host[name] = count
        return later


_switch = threading.RLock()
_current: Recording | None = None
_last: Recording | None = None
_from_flag = False


def record() -> Recording:
    """Keeps the time and the memory of a run for `report`.

    Returns:
        A context manager. Its `start()` and `stop()` do the same without a block.

    Raises:
        RuntimeError: When it begins: another recording is on, or a profile is being recorded, which
            keeps the same events.

    Example:
        >>> with torch_xla.debug.record():
        ...     train()
        >>> torch_xla.debug.report("report.html")
    """
    return Recording()


def current() -> Recording | None:
    """The recording that is on."""
    return _current


def last() -> Recording | None:
    """The recording that is on, else the one that ended last."""
    return _last


def start_from_flag() -> None:
    """Begins the recording that `XLA_REPORT_FILE` asks for."""
    global _from_flag
    Recording().start()
    _from_flag = True


def began_from_flag() -> bool:
    """True if `XLA_REPORT_FILE` began a recording in this process."""
    return _from_flag


def _forget() -> None:
    """A forked child records nothing."""
    global _current, _last, _from_flag, _switch
    _current, _last, _from_flag = None, None, False
    _switch = threading.RLock()
    step.on_barrier = None


os.register_at_fork(after_in_child=_forget)


def _whose() -> str:
    if _from_flag:
        return "the one that XLA_REPORT_FILE began. Unset it to record a part of the run"
    return "one that is on. Stop it first"


def refuse_profile() -> None:
    """Raises where a recording is on, since a profile keeps the same events."""
    if _current is not None:
        began = "XLA_REPORT_FILE began" if _from_flag else "torch_xla.debug.record() began"
        raise RuntimeError(
            f"profiler: expected no other recording, got the one that {began}. Both keep the same "
            "events: stop it, or leave it out, to make a profile."
        )
