"""Places where processes of a job wait for each other, and what they tell each other there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch_xla import _XLAC
from torch_xla._src.job import place, store, waits, watch

if TYPE_CHECKING:
    import torch.distributed as dist

_lock = threading.Lock()
_visits: dict[tuple[int, ...], int] = {}


def meet(tag: str, payload: bytes, replicas: Sequence[int]) -> tuple[bytes, ...]:
    """Waits until all replicas are here, and returns what each has brought.

    Args:
        tag: A name for the place, the same for all.
        payload: What this replica brings.
        replicas: The ranks of those that meet; all without one.

    Returns:
        The payloads in the order of the ranks.

    Raises:
        ValueError: `replicas` are not ranks of the job, each once, this process's among them.
        RuntimeError: Another replica is at a place of another name.
    """
    here = place.place()
    members = _members(tag, replicas, here)
    if len(members) == 1:
        return (payload,)
    watch.start()
    _XLAC._xla_launch_exchanges()  # others may wait for them, and not come here before
    with _lock:
        visit = _visits[members] = _visits.get(members, 0) + 1
    shared = store.store("rendezvous")
    name = tag.encode()
    value = len(name).to_bytes(4, "big") + name + payload
    shared.set(_key(members, visit, here.rank), value)  # type: ignore[arg-type]
    brought = []
    for member in members:
        text = _brought(shared, _key(members, visit, member), tag, member)
        end = 4 + int.from_bytes(text[:4], "big")
        other = text[4:end].decode()
        if other != tag:
            raise RuntimeError(
                f"rendezvous: expected all of the ranks {list(members)} at the same tag, got rank "
                f"{here.rank} at '{tag}' and rank {member} at '{other}'. Call it in the same order "
                "on each."
            )
        brought.append(text[end:])
    # Who is here has read what was brought to the place before.
    shared.delete_key(_key(members, visit - 1, here.rank))
    return tuple(brought)


def _brought(shared: dist.Store, key: str, tag: str, member: int) -> bytes:
    """Waits for it."""
    try:
        with waits.waiting(f"for rank {member} at the rendezvous '{tag}'"):
            return shared.get(key)
    except RuntimeError as error:
        if "timeout" not in str(error):
            raise
        raise RuntimeError(
            f"rendezvous '{tag}': expected rank {member} here in time, got '{error}'.\n"
            f"{watch.tell_job()}"
        ) from error


def _members(tag: str, replicas: Sequence[int], here: place.Place) -> tuple[int, ...]:
    members = tuple(sorted(replicas)) or tuple(range(here.world_size))
    in_job = all(0 <= member < here.world_size for member in members)
    if not in_job or len(set(members)) != len(members) or here.rank not in members:
        raise ValueError(
            f"rendezvous '{tag}': expected ranks of a job of {here.world_size} processes, each "
            f"once, with this process's rank {here.rank} among them, got {list(replicas)}."
        )
    return members


def _key(members: tuple[int, ...], visit: int, rank: int) -> str:
    return f"rendezvous/{','.join(map(str, members))}/{visit}/{rank}"
