"""Groups of the job's replicas, each with the Gloo backend that serves its exchanges on the CPU."""

from __future__ import annotations

import datetime
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_xla import _XLAC
from torch_xla._src.job import place
from torch_xla._src.job import store as _store

if TYPE_CHECKING:
    import torch.distributed as dist

_lock = threading.Lock()
_made: dict[tuple[int, ...], dist.ProcessGroupGloo] = {}


def ensure(
    members: Sequence[int] | None = None,
    store: dist.Store | None = None,
    timeout: datetime.timedelta | None = None,
) -> dist.ProcessGroupGloo | None:
    """Makes the backend of a group, once. Every door that records an exchange calls it before.

    All members have to come here, since they connect to each other.

    Args:
        members: The ranks of this process's group, in its order; all ranks of the job without it.
        store: Where the members meet; the job's store without it.
        timeout: How long an exchange waits for the others; PyTorch's time without it.

    Returns:
        The backend; None for a group of one, which exchanges nothing.

    Raises:
        ValueError: The members are not ranks of the job, each once, this process's among them.
    """
    here = place.place()
    key = tuple(range(here.world_size)) if members is None else tuple(members)
    made = _made.get(key)
    if made is not None:
        return made
    in_job = all(0 <= member < here.world_size for member in key)
    if not in_job or len(set(key)) != len(key) or here.rank not in key:
        raise ValueError(
            f"replica group: expected ranks of a job of {here.world_size} processes, each once, "
            f"with this process's rank {here.rank} among them, got {list(key)}."
        )
    if len(key) == 1:
        return None
    with _lock:
        if key not in _made:
            _made[key] = _connect(key, store, timeout)
        return _made[key]


def connect(
    members: Sequence[int], store: dist.Store, timeout: datetime.timedelta | None = None
) -> dist.ProcessGroupGloo:
    """A backend of these ranks, which meet in the store: each of them calls this."""
    import torch.distributed as dist
    from torch.distributed.constants import default_pg_timeout

    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = timeout or default_pg_timeout
    if place.on_one_host() and not os.environ.get("GLOO_SOCKET_IFNAME"):
        # The host's own name may lead nowhere, or through a network.
        options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    else:
        options._devices = [dist.ProcessGroupGloo.create_default_device()]
    return dist.ProcessGroupGloo(store, list(members).index(place.rank()), len(members), options)


def _connect(
    members: tuple[int, ...], store: dist.Store | None, timeout: datetime.timedelta | None
) -> dist.ProcessGroupGloo:
    import torch.distributed as dist

    name = ",".join(map(str, members))
    here = place.place()
    meeting = dist.PrefixStore(f"group/{name}", store or _store.store("groups"))
    backend = connect(members, meeting, timeout)
    _XLAC._xla_set_replica(here.rank, here.world_size)
    _tell(members, backend)
    return backend


def around(backend: dist.ProcessGroupGloo) -> dist.ProcessGroup:
    """A process group with this backend for the CPU, as C++ takes it."""
    import torch
    import torch.distributed as dist

    group = dist.ProcessGroup(dist.HashStore(), backend.rank(), backend.size())
    gloo = dist.ProcessGroup.BackendType.GLOO
    group._register_backend(torch.device("cpu"), gloo, backend)
    return group


def _tell(members: tuple[int, ...], backend: dist.ProcessGroupGloo) -> None:
    """Gives the backend to the C++ side, which finds it by the name of a process group."""
    from torch._C import _distributed_c10d as c10d

    name: Any = f"torch_xla/{members}"
    group = around(backend)
    c10d._register_process_group(name, group)
    try:
        _XLAC._xla_add_replica_group(list(members), name)
    finally:
        c10d._unregister_process_group(name)
