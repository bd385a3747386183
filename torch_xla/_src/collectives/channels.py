"""Tensors from one replica to another, over a channel that both name by a number."""

from __future__ import annotations

import torch

from torch_xla._src.collectives import replica_groups as _replica_groups
from torch_xla._src.job import place as _place

_peers: dict[tuple[int, str], int] = {}


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Sends a tensor to the replica that calls `recv` for the channel.

    Args:
        value: The tensor.
        channel_id: The channel's number. Its first use waits for the other replica; the two stay
            the same. Two replicas use several channels in the same order.

    Returns:
        `value`.
    """
    here = _place.rank()
    _exchange(value, here, _other_end("send", channel_id))
    return value


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Receives the tensor that another replica sends by `send` for the channel.

    Args:
        output: A tensor of the shape and dtype of what is sent; its values do not matter.
        channel_id: As in `send`.

    Returns:
        The tensor that was sent.
    """
    return _exchange(output, _other_end("recv", channel_id), _place.rank())


def _exchange(tensor: torch.Tensor, source: int, target: int) -> torch.Tensor:
    ends = tuple(sorted((source, target)))
    _replica_groups.connect(_replica_groups.Groups(ends, 2, ends.index(_place.rank())))
    return torch.ops.torch_xla.collective_permute(tensor, [source, target], True)


def _other_end(does: str, channel_id: int) -> int:
    """The replica at the other end of a channel, which says so in the job's store."""
    known = _peers.get((channel_id, does))
    if known is not None:
        return known
    count = _place.world_size()
    if count == 1:
        raise ValueError(f"{does}: expected a job of several replicas, got one.")
    from torch_xla._src.job import store as _store  # a job of one process needs none of it

    other = "recv" if does == "send" else "send"
    store = _store.store("channels")
    store.set(f"channel/{channel_id}/{does}", str(_place.rank()))
    peer = int(store.get(f"channel/{channel_id}/{other}"))
    if peer == _place.rank():
        raise ValueError(
            f"{does}: expected two replicas on channel {channel_id}, got replica {peer} alone."
        )
    _peers[channel_id, does] = peer
    return peer
