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

from torch_xla import _XLAC
from torch_xla._src.job import place

if TYPE_CHECKING:
    import torch.distributed as dist

# Processes of other hosts may start later.
_TO_CONNECT = datetime.timedelta(seconds=300)

# Processes of `xmp.spawn`, and the first ones of torchrun, have this one.
PREFIX = "torch_xla/0"

_lock = threading.Lock()
# By the user; a forked child has others than its parent.
_found: dict[str, tuple[tuple[object, ...], dist.Store]] = {}


def store(user: str = "") -> dist.Store:
    """The job's store, made when it is first asked for, under a prefix that is ours.

    A wait for a key ends after PyTorch's time limit of process groups.

    Args:
        user: Each has a connection of its own, and all see the same keys. A wait keeps a
            connection, so whoever waits for what another rank does takes none that others use.

    Raises:
        DistNetworkError: Nobody keeps it where the launcher's environment says.
    """
    key = _key()
    user = "" if place.world_size() == 1 else user
    with _lock:
        if user not in _found or _found[user][0] != key:
            _found[user] = key, _make()
        return _found[user][1]


def answers() -> bool:
    """True if somebody listens where the job's store is to be. PyTorch would warn at length."""
    try:
        socket.create_connection(address(), timeout=2).close()
    except OSError:
        return False
    return True


def as_reached(user: str) -> tuple[str, int, str]:
    """Host and port of the job's store, and the prefix of what a user in C++ keeps there."""
    return *address(), f"{_prefix()}/{user}/"


def _prefix() -> str:
    return f"torch_xla/{attempt()}"


def address() -> tuple[str, int]:
    """Where the job's store is."""
    given = _XLAC._xla_flag("XLA_JOB_STORE")
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
        _XLAC._xla_flag("XLA_JOB_STORE") or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
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
