"""Shards, into which a parameter is cut, one for each rank: their form and their names.

Names and the layout of data are those of torch_xla 2.9: its checkpoints can be read, and it reads
ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

_PREFIX = "_fsdp_shard"
_SEPARATOR = "_FSDP_SHARD_SEPARATOR_"


class Layout(NamedTuple):
    """The form of shards.

    Attributes:
        ranks: How many there are.
        multiple: A shard is padded to a multiple of so many elements; of rows if `on_dim_0`.
        on_dim_0: Whether a tensor is cut into rows, else into pieces of its elements in a line.
    """

    ranks: int
    multiple: int
    on_dim_0: bool

    def whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor in the form in which it is cut: in a line unless `on_dim_0`, padded by zeros."""
        if not self.on_dim_0:
            tensor = tensor.reshape(-1)
        missing = self.length(tensor.shape) * self.ranks - tensor.size(0)
        return _pad(tensor, missing) if missing else tensor

    def shard(self, tensor: torch.Tensor, rank: int) -> torch.Tensor:
        """A copy of a rank's part of a tensor. Takes no memory for the padded whole."""
        line = tensor if self.on_dim_0 else tensor.reshape(-1)
        length = self.length(tensor.shape)
        begin = min(rank * length, line.size(0))
        end = min(begin + length, line.size(0))
        part = line.narrow(0, begin, end - begin)
        return _pad(part, length - part.size(0)) if part.size(0) < length else part.clone()

    def length(self, size: Sequence[int]) -> int:
        """The first dimension of each shard of a tensor of this size."""
        length = size[0] if self.on_dim_0 else math.prod(size)
        step = self.ranks * self.multiple
        return -(-length // step) * self.multiple

    def restore(self, whole: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
        """The tensor whose form `whole` is: a view."""
        return whole.narrow(0, 0, size[0] if self.on_dim_0 else math.prod(size)).view(size)


class HoldsShards(nn.Module):
    """A wrapper that holds this rank's shards of parameters."""

    rank: int
    sharded_params: list[nn.Parameter]

    def parts_of_shards(self) -> list[list[tuple[list[str], torch.Size]]]:
        """The parameters that follow each other in the full value of each shard: the names under
        which modules have them, within this wrapper, and their shapes.
        """
        raise NotImplementedError


def _pad(tensor: torch.Tensor, missing: int) -> torch.Tensor:
    return F.pad(tensor, [0, 0] * (tensor.dim() - 1) + [0, missing])


def name_of_shard(name: str) -> str:
    """The name of the shard of a parameter of this name."""
    return f"{_PREFIX}.{name}".replace(".", _SEPARATOR)


def split_name(key: str) -> tuple[str, str] | None:
    """A key of a state dict as the name of a wrapper and of a shard in it; None for other keys."""
    parts = key.split(".")
    for i, part in enumerate(parts):
        if part.startswith(_PREFIX):
            return ".".join(parts[:i]), ".".join(parts[i:])
    return None


def key_in_state_dict(name: str) -> str:
    """The key of a parameter of this name: state dicts leave out the module of flat parameters."""
    return name.replace("_fpw_module.", "")


def original_name(name: str) -> str:
    """A name within wrappers as that in the model that was wrapped."""
    return key_in_state_dict(name).replace("_fsdp_wrapped_module.", "")
