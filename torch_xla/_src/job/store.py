"""The store of the job's processes: keys and values that all of them see.

It is c10d's TCPStore. Under torchrun it is the agent's, and `xmp.spawn` keeps one in the parent;
else rank 0 keeps it. A job of one process has a store of its own, without a connection.
"""

from __future__ import annotations

import datetime
import os
import socket
import threading
from typing import TYPE_CHECKING

from torch_xla._src.job import place

if TYPE_CHECKING:
    import torch.distributed as dist

# Processes of other hosts may start later.
_TO_CONNECT = datetime.timedelta(seconds=300)

# Processes of `xmp.spawn`, and the first ones of torchrun, have this one.
PREFIX = "torch_xla/0"

_lock = threading.Lock()
_found: tuple[tuple[object, ...], dist.Store] | None = None


def store() -> dist.Store:
    """The job's store, made when it is first asked for, under a prefix that is ours.

    A wait for a key ends after PyTorch's time limit of process groups.

    Raises:
        DistNetworkError: Nobody keeps it where the launcher's environment says.
    """
    global _found
    key = _key()
    with _lock:
        if _found is None or _found[0] != key:  # a forked child has another than its parent
            _found = key, _make()
        return _found[1]


def connect() -> dist.Store:
    """The same store by a connection of its own: a wait on one keeps others from using it."""
    import torch.distributed as dist

    host, port = address()
    limit = datetime.timedelta(seconds=10)
    own = dist.TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
    return dist.PrefixStore(_prefix(), own)


def answers() -> bool:
    """True if somebody listens where the job's store is to be. PyTorch would warn at length."""
    try:
        socket.create_connection(address(), timeout=2).close()
    except OSError:
        return False
    return True


def _prefix() -> str:
    return f"torch_xla/{attempt()}"


def address() -> tuple[str, int]:
    """Where the job's store is."""
    given = os.environ.get("XLA_JOB_STORE")
    if given:
        host, _, port = given.rpartition(":")
        return host, int(port)
    return place.master_address(), place.master_port()


def attempt() -> str:
    """torchrun's number of this start of the job's processes."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT") or "0"


def _key() -> tuple[object, ...]:
    return os.getpid(), place.place(), address(), attempt()


def _make() -> dist.Store:
    import torch.distributed as dist
    from torch.distributed.constants import default_pg_timeout

    here = place.place()
    if here.world_size == 1:
        return dist.PrefixStore("torch_xla", dist.HashStore())
    host, port = address()
    kept_by_launcher = (
        "XLA_JOB_STORE" in os.environ or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    )
    shared = dist.TCPStore(
        host,
        port,
        here.world_size,
        is_master=here.rank == 0 and not kept_by_launcher,
        timeout=_TO_CONNECT,
        wait_for_workers=False,
        multi_tenant=True,  # init_process_group may be told of the same port
    )
    shared.set_timeout(default_pg_timeout)
    return dist.PrefixStore(_prefix(), shared)
