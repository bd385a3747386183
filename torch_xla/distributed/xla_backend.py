"""The backend `xla` of `torch.distributed`, registered by importing torch_xla.

`torch.distributed.init_process_group("xla", init_method="xla://")` brings the job's processes
together (`pjrt://` is an old name, and `env://` works, too). Calls on tensors of xla become parts
of the program; those on tensors of the CPU go through Gloo. `init_process_group("gloo",
init_method="xla://")` makes the group of the CPU that checkpoints of SPMD programs use.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from torch_xla import _XLAC


def _create_xla_process_group(options: Any, backend_options: Any = None) -> Any:
    """Makes the backend of a process group.

    Args:
        options: c10d's `_DistributedBackendOptions`.
        backend_options: None: this backend has no options of its own.

    Raises:
        AssertionError: In SPMD mode, where one process has all devices.
        ValueError: The group has other ranks than the job.
    """
    if _XLAC._xla_is_spmd():
        raise AssertionError(
            "XLA backend is not supported with SPMD. Please use a CPU process group instead: "
            'init_process_group("gloo").'
        )
    from torch_xla._src.job import groups, place  # not a part of what `import torch_xla` costs

    members = list(options.global_ranks_in_group) or list(range(options.group_size))
    here = place.place()
    if members[options.group_rank] != here.rank or max(members) >= here.world_size:
        raise ValueError(
            f"init_process_group: expected rank {here.rank} of {here.world_size} processes, as the "
            f"launcher's environment says, got rank {options.group_rank} of {members}. Set RANK "
            "and WORLD_SIZE, or start the job with torchrun or torch_xla.launch."
        )
    timeout = options.timeout
    groups.ensure(members, dist.PrefixStore("exchanges", options.store), timeout)
    host = groups.connect(members, dist.PrefixStore("host", options.store), timeout)
    made = torch.ops.torch_xla.make_process_group(
        groups.around(host).boxed(), members, int(timeout.total_seconds() * 1000)
    )
    return dist.ProcessGroup.unbox(made)._get_backend(torch.device("xla"))


_groups = itertools.count()


def _next_group() -> str:
    """A name for what is the first, second, ... group of this process, and so of each."""
    return f"init_process_group/{next(_groups)}"


def pjrt_rendezvous_handler(
    url: str, timeout: datetime.timedelta | None = None, **kwargs: Any
) -> Iterator[tuple[Any, int, int]]:
    """The answer to `init_method="xla://"`: a store, the rank and the number of processes."""
    from torch_xla._src.job import place, store  # not a part of what `import torch_xla` costs

    here = place.place()
    yield (
        dist.PrefixStore(_next_group(), store.store("init_process_group")),
        here.rank,
        here.world_size,
    )


# Also for tensors of the CPU, so that `ProcessGroup.barrier` and object collectives have a backend.
dist.Backend.register_backend(
    "xla", _create_xla_process_group, extended_api=True, devices=["xla", "cpu"]
)
dist.register_rendezvous_handler("xla", pjrt_rendezvous_handler)
dist.register_rendezvous_handler("pjrt", pjrt_rendezvous_handler)
