"""A profile of several ranks: those that record at the same time write to one folder, and who ends
last makes a file of all, in which each process bears its rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from torch_xla._src.job import place, store
from torch_xla._src.job.turns import Turns
from torch_xla._src.profile import spaces

if TYPE_CHECKING:
    import torch.distributed as dist

_FILE = "job.trace.json"
_begun: set[str] = set()
_alone = Turns(of_job="profiles")


def begin(now: str) -> str:
    """The name of the run that this process records: that of the others who do, else `now`; a
    process is in each run once."""
    if place.world_size() == 1:
        return now
    with _alone:
        shared = _store()
        if shared.add("recording", 1) == 1 or shared.get("run").decode() in _begun:
            shared.set("run", now)
        run = shared.get("run").decode()
    _begun.add(run)
    return run


def end(folder: Path) -> None:
    """This process has written its files to the folder. The last one joins those that it finds."""
    if place.world_size() == 1:
        return
    with _alone:
        if _store().add("recording", -1) == 0:
            join(folder)


def join(folder: Path) -> None:
    """Writes the events of all `.trace.json` of a run to one, where they are of ranks of a job:
    other programs number their processes alike."""
    paths = sorted(path for path in folder.glob("*.trace.json") if path.name != _FILE)
    files = [json.loads(path.read_text())["traceEvents"] for path in paths]
    numbers = [number for events in files for number in {e["pid"] for e in events}]
    if len(files) > 1 and len(set(numbers)) == len(numbers):
        spaces.write_trace([e for events in files for e in events], folder / _FILE)


def _store() -> dist.Store:
    import torch.distributed as dist

    return dist.PrefixStore("profiles", store.store("profiles"))
