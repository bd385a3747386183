"""The backend `xla` of `torch.distributed`, registered by importing torch_xla.

Its groups are not there yet. `init_method="xla://"`, or its old name `pjrt://`, brings the job's
processes together: `torch.distributed.init_process_group("gloo", init_method="xla://")` makes the
group of the CPU, which checkpoints of SPMD programs use in a job of one process, too.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Iterator
from typing import Any

import torch.distributed as dist

from torch_xla import _XLAC


def _create_xla_process_group(
    prefix_store: Any, rank: int, size: int, timeout: datetime.timedelta
) -> Any:
    """Makes the group of `init_process_group("xla")`.

    Raises:
        AssertionError: In SPMD mode, where one process has all devices.
        NotImplementedError: There are no jobs of several processes yet.
    """
    if _XLAC._xla_is_spmd():
        raise AssertionError(
            "XLA backend is not supported with SPMD. Please use a CPU process group instead: "
            'init_process_group("gloo").'
        )
    raise NotImplementedError(
        "init_process_group: expected a backend of the CPU, got 'xla', which needs jobs of several "
        "processes; they are not supported yet. Use SPMD (torch_xla.runtime.use_spmd) for several "
        "devices, and torch_xla.core.xla_model's collectives for code that is also to run on one."
    )


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


dist.Backend.register_backend("xla", _create_xla_process_group, devices=["xla"])
dist.register_rendezvous_handler("xla", pjrt_rendezvous_handler)
dist.register_rendezvous_handler("pjrt", pjrt_rendezvous_handler)
