"""One compile for a job: its processes share programs by its store (csrc/executor/stored).

A process that needs a program early waits until the store is found, or does not answer yet.
"""

from __future__ import annotations

from torch_xla import _XLAC
from torch_xla._src.job import place, store


def look_for_store() -> None:
    """To be called before somebody looks for the store."""
    _XLAC._xla_look_for_job_store()


def go_alone() -> None:
    """The store does not answer yet, or no more: until it does this process compiles for itself."""
    _XLAC._xla_compile_alone()


def share() -> None:
    """Begins it: the store answers."""
    here = place.place()
    _XLAC._xla_share_programs(*store.as_reached("programs"), here.rank, here.world_size)
