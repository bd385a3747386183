"""Functions of PyTorch that refuse backends and devices whose name they do not know.

What is large in them is imported when it is called.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn

from torch_xla import _XLAC


def install() -> None:
    """To be called once."""
    _wrap_storages()
    if torch.distributed.is_available():
        _wrap_groups()
        _wrap_batch_norm()


def _wrap_groups() -> None:
    from torch.distributed import distributed_c10d as c10d

    monitored_barrier, split_group = c10d.monitored_barrier, c10d.split_group

    @functools.wraps(monitored_barrier)
    def checked_monitored_barrier(
        group: Any = None, timeout: Any = None, wait_all_ranks: bool = False
    ) -> None:
        if not _is_of_xla(group):
            return monitored_barrier(group, timeout, wait_all_ranks)
        if timeout is None:
            timeout = c10d._get_default_timeout(c10d.get_backend(group))
        meeting: Any = group or c10d._get_default_group()
        meeting.monitored_barrier(timeout, wait_all_ranks)

    @functools.wraps(split_group)
    def split_by_ranks(
        parent_pg: Any = None,
        split_ranks: Any = None,
        timeout: Any = None,
        pg_options: Any = None,
        group_desc: str | None = None,
        **others: Any,
    ) -> Any:
        if not _is_of_xla(parent_pg) or split_ranks is None:
            return split_group(parent_pg, split_ranks, timeout, pg_options, group_desc, **others)
        ranks = c10d.get_process_group_ranks(parent_pg)
        mine = next((part for part in split_ranks if c10d.get_rank(parent_pg) in part), None)
        if mine is None:
            return None
        return c10d.new_group(
            sorted(ranks[rank] for rank in mine),
            timeout,
            use_local_synchronization=True,  # the other parts make theirs
            group_desc=group_desc,
        )

    for name, function in (
        ("monitored_barrier", checked_monitored_barrier),
        ("split_group", split_by_ranks),
    ):
        setattr(c10d, name, function)
        setattr(torch.distributed, name, function)


def _is_of_xla(group: Any) -> bool:
    from torch.distributed import distributed_c10d as c10d

    if not c10d.is_initialized() or c10d._rank_not_in_group(group):
        return False
    return c10d.get_backend(group) == "xla"


def _wrap_storages() -> None:
    """FSDP2 gives the memory of gathered parameters back by `resize_`, and takes it again."""
    original = torch.UntypedStorage.resize_

    @functools.wraps(original)
    def resize_(self: torch.UntypedStorage, size: int) -> Any:
        if self.device.type != "xla":
            return original(self, size)
        _XLAC._xla_resize_storage(self, size)
        return self

    torch.UntypedStorage.resize_ = resize_  # type: ignore[assignment]


def _wrap_batch_norm() -> None:
    original = nn.SyncBatchNorm.forward

    @functools.wraps(original)
    def forward(self: nn.SyncBatchNorm, input: torch.Tensor) -> torch.Tensor:
        is_alone = not torch.distributed.is_initialized()
        if input.device.type != "xla" or not self.training or is_alone:
            return original(self, input)
        from torch_xla._src.processes import sync_batch_norm

        return sync_batch_norm.forward(self, input)

    nn.SyncBatchNorm.forward = forward
