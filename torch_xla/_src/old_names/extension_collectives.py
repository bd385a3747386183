"""Exchanges among replicas by the names that `torch_xla._XLAC` had for them.

They take tokens, by which programs of earlier versions kept their order, and give them back: here
exchanges keep the program's order without. `groups` that are empty are one group of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._src.collectives import channels as _channels
from torch_xla._src.collectives import exchanges as _exchanges

Groups = list[list[int]]


def _all_reduce(
    reduce_type: str, value: torch.Tensor, scale: float, groups: Groups, pin_layout: bool
) -> torch.Tensor:
    """`xm.all_reduce` of a tensor."""
    return _exchanges.all_reduce(reduce_type, value, scale, groups or None, pin_layout)


def _all_reduce_inplace(
    reduce_type: str,
    values: Sequence[torch.Tensor],
    scale: float,
    groups: Groups,
    pin_layout: bool,
) -> None:
    """`xm.all_reduce` of a list, in place."""
    _exchanges.all_reduce(reduce_type, list(values), scale, groups or None, pin_layout)


def _all_gather(
    value: torch.Tensor,
    dim: int,
    shard_count: int,
    groups: Groups,
    pin_layout: bool,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> torch.Tensor:
    """`xm.all_gather`; `shard_count` is the size of a group."""
    return _exchanges.all_gather(value, dim, groups or None)


def _all_gather_out(
    output: Any, value: Any, token: Any, dim: int, shard_count: int, groups: Groups, pin: bool
) -> Any:
    """`xm.all_gather` into a tensor, or into as many as there are values; returns the token."""
    _exchanges.all_gather(value, dim, groups or None, output=output)
    return token


def _all_gather_coalesced(
    values: Sequence[torch.Tensor],
    token: Any,
    dim: int,
    shard_count: int,
    groups: Groups,
    pin_layout: bool,
) -> list[Any]:
    """`xm.all_gather` of a list; the results, and the token."""
    return [*_exchanges.all_gather(list(values), dim, groups or None), token]


def _all_to_all(
    value: torch.Tensor,
    token: Any,
    split_dimension: int,
    concat_dimension: int,
    split_count: int,
    groups: Groups,
    pin_layout: bool,
) -> tuple[torch.Tensor, Any]:
    """`xm.all_to_all`, and the token."""
    result = _exchanges.all_to_all(
        value, split_dimension, concat_dimension, split_count, groups or None
    )
    return result, token


def _collective_permute(
    value: torch.Tensor, token: Any, pairs: Sequence[Sequence[int]]
) -> tuple[torch.Tensor, Any]:
    """`xm.collective_permute`, and the token."""
    return _exchanges.collective_permute(value, pairs), token


def _reduce_scatter(
    reduce_type: str,
    value: torch.Tensor,
    token: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups,
    pin_layout: bool,
    channel_id: int | None = None,
    use_global_device_ids: bool | None = None,
) -> tuple[torch.Tensor, Any]:
    """`xm.reduce_scatter`, and the token."""
    result = _exchanges.reduce_scatter(
        reduce_type, value, scale, scatter_dim, shard_count, groups or None
    )
    return result, token


def _reduce_scatter_out(
    reduce_type: str,
    output: Any,
    value: Any,
    token: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups,
    pin_layout: bool,
) -> Any:
    """`xm.reduce_scatter` into a tensor, or into as many as there are; returns the token."""
    _exchanges.reduce_scatter(
        reduce_type, value, scale, scatter_dim, shard_count, groups or None, output=output
    )
    return token


def _reduce_scatter_coalesced(
    reduce_type: str,
    values: Sequence[torch.Tensor],
    token: Any,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Groups,
    pin_layout: bool,
) -> list[Any]:
    """`xm.reduce_scatter` of a list; the results, and the token."""
    results = _exchanges.reduce_scatter(
        reduce_type, list(values), scale, scatter_dim, shard_count, groups or None
    )
    return [*results, token]


def _send(value: torch.Tensor, token: Any, channel_id: int) -> tuple[torch.Tensor, Any]:
    """`xm.send`: the value, and the token."""
    return _channels.send(value, channel_id), token


def _recv(output: torch.Tensor, token: Any, channel_id: int) -> tuple[torch.Tensor, Any]:
    """`xm.recv`: the value that came, and the token."""
    return _channels.recv(output, channel_id), token


def _set_replication_devices(devices: Sequence[str]) -> None:
    """Accepted: each process of a job is a replica."""


NAMES = {
    f"_xla{name}": function
    for name, function in {
        "_all_gather": _all_gather,
        "_all_gather_coalesced": _all_gather_coalesced,
        "_all_gather_coalesced_out": _all_gather_out,
        "_all_gather_out": _all_gather_out,
        "_all_reduce": _all_reduce,
        "_all_reduce_inplace": _all_reduce_inplace,
        "_all_to_all": _all_to_all,
        "_collective_permute": _collective_permute,
        "_recv": _recv,
        "_reduce_scatter": _reduce_scatter,
        "_reduce_scatter_coalesced": _reduce_scatter_coalesced,
        "_reduce_scatter_coalesced_out": _reduce_scatter_out,
        "_reduce_scatter_out": _reduce_scatter_out,
        "_send": _send,
        "_set_replication_devices": _set_replication_devices,
    }.items()
}
