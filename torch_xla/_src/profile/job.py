"""A profile of several ranks: those that record at the same time write to one folder, and who ends
last makes a file of all, in which each process bears its rank."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from torch_xla._src.job import place, store, waits
from torch_xla._src.profile import spaces

if TYPE_CHECKING:
    import torch.distributed as dist

_FILE = "job.trace.json"
_begun: set[str] = set()


def begin(now: str) -> str:
    """The name of the run that this process records: that of the others who do, else `now`; a
    process is in each run once."""
    if place.world_size() == 1:
        return now
    with _alone() as shared:
        if shared.add("recording", 1) == 1 or shared.get("run").decode() in _begun:
            shared.set("run", now)
        run = shared.get("run").decode()
    _begun.add(run)
    return run


def end(folder: Path) -> None:
    """This process has written its files to the folder. The last one joins those that it finds."""
    if place.world_size() == 1:
        return
    with _alone() as shared:
        if shared.add("recording", -1) == 0:
            join(folder)


def join(folder: Path) -> None:
    """Writes the events of all `.trace.json` of a run to one."""
    paths = sorted(path for path in folder.glob("*.trace.json") if path.name != _FILE)
    if len(paths) < 2:
        return
    events = [e for path in paths for e in json.loads(path.read_text())["traceEvents"]]
    spaces.write_trace(events, folder / _FILE)


@contextlib.contextmanager
def _alone() -> Iterator[dist.Store]:
    """The job's store, while no other process is here: each waits for the one before."""
    import torch.distributed as dist

    shared = dist.PrefixStore("profiles", store.store("profiles"))
    turn = shared.add("turns", 1)
    if turn > 1:
        with waits.waiting("for another rank's profile"):
            shared.get(f"turn/{turn - 1}")
    try:
        yield shared
    finally:
        shared.set(f"turn/{turn}", "")
