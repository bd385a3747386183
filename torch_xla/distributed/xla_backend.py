"""The backend `xla` of `torch.distributed`, registered by importing torch_xla.

Groups of it need a job of several processes, which there is not yet. The rendezvous `xla://` works
in a job of one process: `torch.distributed.init_process_group("gloo", init_method="xla://")` makes
the group of the CPU that checkpoints of SPMD programs use.
"""

from __future__ import annotations

import datetime
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


def pjrt_rendezvous_handler(
    url: str, timeout: datetime.timedelta | None = None, **kwargs: Any
) -> Iterator[tuple[Any, int, int]]:
    """The answer to `init_method="xla://"`: a store, the rank and the number of processes.

    Raises:
        NotImplementedError: A launcher started this process as one of several.
    """
    from torch_xla._src.device import replication  # not a part of what `import torch_xla` costs

    yield dist.HashStore(), replication.global_ordinal(), replication.world_size()


dist.Backend.register_backend("xla", _create_xla_process_group, devices=["xla"])
dist.register_rendezvous_handler("xla", pjrt_rendezvous_handler)
