"""From the events that the extension has kept to a profile's files."""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch_xla._src.profile_messages import messages

_PICOSECONDS = 1000  # in a nanosecond
# What xprof takes for numbers: a step and its number.
_NUMBERS = frozenset({"_r", "step_num", "group_id"})


class _Plane:
    """One plane of a profile: names are written once, and events refer to them."""

    def __init__(self, space: Any, name: str):
        self._plane = space.planes.add(id=len(space.planes), name=name)
        self._events: dict[str, int] = {}
        self._stats: dict[str, int] = {}

    def add_line(self, name: str, id_: int, start: int, events: Iterable[tuple]) -> None:
        """Adds the events of one thread or device, in nanoseconds; `start` is that of the trace."""
        line = self._plane.lines.add(id=id_, display_id=id_, name=name, timestamp_ns=start)
        for name_, begin, end, details in sorted(events, key=lambda e: (e[1], -e[2])):
            event = line.events.add(
                metadata_id=self._number(self._events, self._plane.event_metadata, name_),
                offset_ps=max(0, begin - start) * _PICOSECONDS,
                duration_ps=max(0, end - begin) * _PICOSECONDS,
            )
            for key, value in details:
                stat = event.stats.add(
                    metadata_id=self._number(self._stats, self._plane.stat_metadata, key)
                )
                if key in _NUMBERS and value.lstrip("-").isdigit():
                    stat.int64_value = int(value)
                else:
                    stat.str_value = value

    @staticmethod
    def _number(known: dict[str, int], table: Any, name: str) -> int:
        if name not in known:
            known[name] = len(known) + 1
            table[known[name]].id = known[name]
            table[known[name]].name = name
        return known[name]


def to_xspace(tracks: Iterable[Mapping[str, Any]], host: str) -> Any:
    """An `XSpace` of the tracks that `_XLAC._xla_stop_trace` gives.

    Threads are lines of the plane `/host:CPU`, each device a plane `/device:CUSTOM:xla:0`.
    """
    space = messages().XSpace(hostnames=[host])
    tracks = list(tracks)
    start = min((e[1] for track in tracks for e in track["events"]), default=0)
    host_plane = _Plane(space, "/host:CPU")
    for track in tracks:
        if track["is_device"]:
            plane = _Plane(space, f"/device:CUSTOM:{track['name']}")
            plane.add_line("Programs", track["id"], start, track["events"])
        else:
            host_plane.add_line(track["name"], track["id"], start, track["events"])
    return space


def to_trace_events(tracks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The tracks as Chrome's and Perfetto's JSON: process 1 is the host, 2 the devices."""
    events: list[dict[str, Any]] = []
    for pid, name in ((1, "host"), (2, "devices")):
        events.append({"ph": "M", "name": "process_name", "pid": pid, "args": {"name": name}})
    for track in tracks:
        where = {"pid": 2 if track["is_device"] else 1, "tid": track["id"]}
        events.append({"ph": "M", "name": "thread_name", "args": {"name": track["name"]}, **where})
        for name, begin, end, details in track["events"]:
            span = {"ts": begin / 1e3, "dur": (end - begin) / 1e3}
            events.append({"ph": "X", "name": name, "args": dict(details), **span, **where})
    return {"displayTimeUnit": "ns", "traceEvents": events}


def host_name() -> str:
    return socket.gethostname()


def run_folder(log_dir: str | os.PathLike, run: str | None = None) -> Path:
    """The folder of a run's files below a log directory of TensorBoard."""
    return Path(log_dir) / "plugins" / "profile" / (run or time.strftime("%Y_%m_%d_%H_%M_%S"))


def write(tracks: list[Mapping[str, Any]], folder: Path, host: str) -> None:
    """Writes `HOST.xplane.pb`, for TensorBoard and xprof, and `HOST.trace.json`, for Perfetto."""
    write_space(to_xspace(tracks, host).SerializeToString(), folder, host)
    (folder / f"{host}.trace.json").write_text(json.dumps(to_trace_events(tracks)))


def write_space(xspace: bytes, folder: Path, host: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{host}.xplane.pb").write_bytes(xspace)
