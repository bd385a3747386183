"""From the events that the extension has kept to a profile's files."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch_xla._src.job import place
from torch_xla._src.old_names.profile_events import EVENTS
from torch_xla._src.profile.messages import messages

_PICOSECONDS = 1000  # in a nanosecond
_RECORDING = 1 << 30  # beyond the numbers of threads
_DAY = 86_400 * 1_000_000_000  # nanoseconds
# Names that xprof takes for numbers: a step and its number.
_NUMBERS = frozenset({"_r", "step_num", "group_id"})


_NONE: Mapping[str, str] = {}


class _Plane:
    """One plane of a profile, which may have events already: names are written once, and events
    refer to them.
    """

    def __init__(self, space: Any, name: str):
        found = [plane for plane in space.planes if plane.name == name]
        self._plane = found[0] if found else space.planes.add(id=len(space.planes), name=name)
        self._events: dict[str, int] = {}
        self._stats: dict[str, int] = {}

    def add_line(self, name: str, id_: int, start: int, events: Iterable[tuple]) -> None:
        """Adds the events of one thread or device, in nanoseconds; `start` is that of the trace."""
        line = next((line for line in self._plane.lines if line.id == id_), None)
        if line is None or abs(line.timestamp_ns - start) > _DAY:  # of another clock
            line = self._plane.lines.add(id=id_, display_id=id_, timestamp_ns=start)
        line.name = name
        if start < line.timestamp_ns:
            for event in line.events:
                event.offset_ps += (line.timestamp_ns - start) * _PICOSECONDS
            line.timestamp_ns = start
        for name_, begin, end, details in events:
            event = line.events.add(
                metadata_id=_number(self._events, self._plane.event_metadata, name_, EVENTS),
                offset_ps=max(0, begin - line.timestamp_ns) * _PICOSECONDS,
                duration_ps=max(0, end - begin) * _PICOSECONDS,
            )
            for key, value in details:
                stat = event.stats.add(
                    metadata_id=_number(self._stats, self._plane.stat_metadata, key)
                )
                if key in _NUMBERS and value.lstrip("-").isdigit():
                    stat.int64_value = int(value)
                else:
                    stat.str_value = value
        line.events.sort(key=lambda e: (e.offset_ps, -e.duration_ps))


def _number(
    known: dict[str, int], table: Any, name: str, old_names: Mapping[str, str] = _NONE
) -> int:
    """The number of a name in a table, which gets it where it is not `known`; and its old name."""
    if name not in known:
        known[name] = (max(known.values()) if known else max(table, default=0)) + 1
        entry = table[known[name]]
        entry.id = known[name]
        entry.name = old_names.get(name, name)
        if name in old_names:
            entry.display_name = name
    return known[name]


def parse(data: bytes) -> Any:
    """The `XSpace` that a plugin has serialized."""
    from google.protobuf.message import DecodeError

    try:
        return messages().XSpace.FromString(data)
    except DecodeError:
        if not data.endswith(b"\0"):
            raise
        # libtpu counts a byte more than it wrote. No message goes on with a zero.
        return messages().XSpace.FromString(data[:-1])


def to_xspace(tracks: Iterable[Mapping[str, Any]], host: str, plugin: Any = None) -> Any:
    """An `XSpace` of the tracks that `_XLAC._xla_stop_trace` gives.

    Threads are lines of the plane `/host:CPU`, each device a plane `/device:CUSTOM:xla:0`.

    Args:
        host: The name of this machine.
        plugin: The `XSpace` of the plugin's own profile. Ours joins it: what it says of a thread
            is on one line with what we do.
    """
    space = plugin if plugin is not None else messages().XSpace()
    if host not in space.hostnames:
        space.hostnames.append(host)
    tracks = list(tracks)
    start = min((e[1] for track in tracks for e in track["events"]), default=0)
    host_plane = _Plane(space, "/host:CPU")
    for track in tracks:
        if track["is_device"]:
            plane = _Plane(space, f"/device:CUSTOM:{track['name']}")
            plane.add_line("Programs", track["id"], start, track["events"])
        else:
            host_plane.add_line(track["name"], track["id"], start, track["events"])
            # Parts of the program begin and end where these do not: they have a line of their own.
            if recorded := list(_recorded(track["events"], start)):
                name, number = f"recording of {track['name']}", track["id"] + _RECORDING
                host_plane.add_line(name, number, start, recorded)
    return space


def _recorded(events: Iterable[tuple], start: int) -> Iterator[tuple]:
    """From each barrier of a thread to its next one: the Python that records what it runs."""
    begin = start
    for barrier, end in sorted((b, e) for name, b, e, _ in events if name == "sync"):
        if begin < barrier:
            yield "record", begin, barrier, []
        begin = end


def to_trace_events(space: Any) -> list[dict[str, Any]]:
    """An `XSpace` as Chrome's and Perfetto's events: each plane is a process, each line a thread.
    In a job their names and numbers tell the ranks apart."""
    events: list[dict[str, Any]] = []
    here = place.place()
    rank, first = (f"rank {here.rank}: ", 1000 * here.rank + 1) if here.world_size > 1 else ("", 1)
    for pid, plane in enumerate(space.planes, first):
        _name(events, "process_name", rank + plane.name, pid=pid)
        names = {key: m.display_name or m.name for key, m in plane.event_metadata.items()}
        stats = {key: m.name for key, m in plane.stat_metadata.items()}
        for line in plane.lines:
            where = {"pid": pid, "tid": line.display_id or line.id}
            _name(events, "thread_name", line.display_name or line.name, **where)
            for event in line.events:
                events.append(
                    {
                        "ph": "X",
                        "name": names.get(event.metadata_id, ""),
                        "ts": line.timestamp_ns / 1e3 + event.offset_ps / 1e6,
                        "dur": event.duration_ps / 1e6,
                        "args": {
                            stats.get(s.metadata_id, ""): _value(s, stats) for s in event.stats
                        },
                        **where,
                    }
                )
    return events


def _name(events: list[dict[str, Any]], what: str, name: str, **where: int) -> None:
    events.append({"ph": "M", "name": what, "args": {"name": name}, **where})


def _value(stat: Any, names: Mapping[int, str]) -> Any:
    text = stat.str_value or names.get(stat.ref_value, "")
    return text or stat.int64_value or stat.uint64_value or stat.double_value


def host_name() -> str:
    """The name of this machine, and in a job the rank."""
    here = place.place()
    return socket.gethostname() + (f"_rank{here.rank}" if here.world_size > 1 else "")


def run_name() -> str:
    """That of a run which begins now."""
    return time.strftime("%Y_%m_%d_%H_%M_%S")


def run_folder(log_dir: str | os.PathLike, run: str | None = None) -> Path:
    """The folder of a run's files below a log directory of TensorBoard."""
    return Path(log_dir) / "plugins" / "profile" / (run or run_name())


def write(space: Any, folder: Path, host: str) -> None:
    """Writes `HOST.xplane.pb`, for TensorBoard and xprof, and `HOST.trace.json`, for Perfetto."""
    write_space(space.SerializeToString(), folder, host)
    write_trace(to_trace_events(space), folder / f"{host}.trace.json")


def write_trace(events: list[dict[str, Any]], path: Path) -> None:
    path.write_text(json.dumps({"displayTimeUnit": "ns", "traceEvents": events}))


def write_space(xspace: bytes, folder: Path, host: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{host}.xplane.pb").write_bytes(xspace)
