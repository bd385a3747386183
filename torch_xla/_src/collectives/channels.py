"""Tensors from one replica to another, over a channel that both name by a number."""

from __future__ import annotations

import torch

from torch_xla._src.collectives import replica_groups as _replica_groups
from torch_xla._src.job import place as _place

# Counted down, since programs' own tags of torch.distributed.send count up; the one above it is
# that of permutations.
_FIRST_TAG = 2**31 - 2
_peers: dict[tuple[int, str], int] = {}


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Sends a tensor to the replica that calls `recv` for the channel.

    Args:
        value: The tensor.
        channel_id: The channel's number. Its first use waits for the other replica; the two stay
            the same.

    Returns:
        `value`, without waiting for who receives it.

    Raises:
        ValueError: The job has one replica, or the number is negative or past 2^31 - 2.
    """
    torch.ops.torch_xla.exchange_send(value, *_message("send", channel_id))
    return value


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Receives the tensor that another replica sends by `send` for the channel.

    Args:
        output: A tensor of the shape and dtype of what is sent; its values do not matter.
        channel_id: As in `send`.

    Returns:
        The tensor that was sent: a channel's tensors come in the order of their sends.

    Raises:
        ValueError: As in `send`.
    """
    return torch.ops.torch_xla.exchange_receive(output, *_message("recv", channel_id))


def _message(does: str, channel_id: int) -> tuple[int, int, tuple[int, ...]]:
    """The peer's place among the two ends, the tag of the channel's messages, and the ends."""
    if not 0 <= channel_id <= _FIRST_TAG:
        raise ValueError(
            f"{does}: expected a channel from 0 to {_FIRST_TAG}, got channel {channel_id}."
        )
    here, peer = _place.rank(), _other_end(does, channel_id)
    ends = tuple(sorted((here, peer)))
    _replica_groups.connect(_replica_groups.Groups(ends, 2, ends.index(here)))
    return ends.index(peer), _FIRST_TAG - channel_id, ends


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
