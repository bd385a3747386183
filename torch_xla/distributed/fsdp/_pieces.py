"""Where the tensors of a model lie in the shards of its checkpoints.

The shards of a parameter, one after the other, are its elements in a line, and then padding.
Those of a flat parameter are the elements of several.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from torch_xla.distributed.fsdp import _shards


class Piece(NamedTuple):
    """A tensor of the model.

    Attributes:
        size: Its shape.
        key: The key of its shards in state dicts; of itself if it is not sharded.
        begin: Where it begins in their line; None if it is not sharded.
    """

    size: torch.Size
    key: str
    begin: int | None


def pieces(state_dict: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Piece]:
    """The tensors of a model by their names, in the order of the state dict of one rank.

    Args:
        state_dict: `model.state_dict()` of any rank.
        metadata: `model.get_shard_metadata()` of any rank.
    """
    result: dict[str, Piece] = {}
    for key, value in state_dict.items():
        names = _shards.split_name(key)
        if names is None:
            size = value.shape if isinstance(value, torch.Tensor) else torch.Size()
            result[_shards.original_name(key)] = Piece(size, key, None)
            continue
        wrapper, shard = names
        info = metadata["shard_info"][wrapper][shard]
        name = f"{wrapper}.{info['_orig_name']}" if wrapper else info["_orig_name"]
        flat = metadata["flatten_info"].get(_shards.key_in_state_dict(name))
        if flat is None:
            result[_shards.original_name(name)] = Piece(torch.Size(info["_orig_size"]), key, 0)
            continue
        outer = name.rpartition(".")[0]
        begin = 0
        for inner, shape, numel in zip(*flat, strict=True):
            result[_shards.original_name(f"{outer}.{inner}")] = Piece(torch.Size(shape), key, begin)
            begin += numel
    return result


class Source:
    """Tensors of a model, of which parts can be read."""

    def names(self) -> Iterable[str]:
        """The names of the tensors."""
        raise NotImplementedError

    def size(self, name: str) -> torch.Size:
        """A tensor's shape."""
        raise NotImplementedError

    def read(self, name: str, begin: int, end: int) -> torch.Tensor:
        """Elements of a tensor in a line, on the CPU."""
        raise NotImplementedError

    def whole(self, name: str) -> Any:
        """A tensor, or what else a state dict has."""
        size = self.size(name)
        return self.read(name, 0, math.prod(size)).view(size)


class OfStateDict(Source):
    """The tensors of a model's state dict."""

    def __init__(self, state_dict: Mapping[str, Any]):
        self._state_dict = state_dict

    def names(self) -> Iterable[str]:
        return self._state_dict

    def size(self, name: str) -> torch.Size:
        return self._state_dict[name].shape

    def read(self, name: str, begin: int, end: int) -> torch.Tensor:
        return self._state_dict[name].detach().reshape(-1)[begin:end].cpu()

    def whole(self, name: str) -> Any:
        return self._state_dict[name]


class OfShards(Source):
    """The tensors of a model whose shards some state dicts have, in the order of ranks."""

    def __init__(self, state_dicts: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any]):
        if len(state_dicts) != metadata["world_size"]:
            raise ValueError(
                f"sharded checkpoints: expected those of {metadata['world_size']} ranks, got "
                f"{len(state_dicts)}."
            )
        self._state_dicts = state_dicts
        self._pieces = pieces(state_dicts[0], metadata)
        self._buffers = metadata.get("buffer_info", {})

    def names(self) -> Iterable[str]:
        return self._pieces

    def size(self, name: str) -> torch.Size:
        return self._pieces[name].size

    def dtype(self, name: str) -> torch.dtype:
        """A tensor's dtype."""
        piece = self._pieces[name]
        info = self._buffers.get(piece.key)
        return info["_orig_dtype"] if info else self._state_dicts[0][piece.key].dtype

    def is_tensor(self, name: str) -> bool:
        """Tells if it is one; a module may keep other things in its state dict."""
        return isinstance(self._state_dicts[0][self._pieces[name].key], torch.Tensor)

    def read(self, name: str, begin: int, end: int) -> torch.Tensor:
        piece = self._pieces[name]
        if piece.begin is None:
            value = self._state_dicts[0][piece.key]  # of buffers, those of the first rank
            return value.reshape(-1)[begin:end].to(self.dtype(name))
        begin, end = begin + piece.begin, end + piece.begin
        length = self._state_dicts[0][piece.key].numel()
        parts = []
        for rank in range(begin // length, -(-end // length)):
            line = self._state_dicts[rank][piece.key].reshape(-1)
            parts.append(line[max(begin - rank * length, 0) : min(end - rank * length, length)])
        if not parts:
            return self._state_dicts[0][piece.key].new_empty(0)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def whole(self, name: str) -> Any:
        if not self.is_tensor(name):
            return self._state_dicts[0][self._pieces[name].key]
        return super().whole(name)

    def fill(self, name: str, tensor: torch.Tensor) -> None:
        """Writes a tensor to another, shard by shard."""
        line = tensor.view(-1)
        piece = self._pieces[name]
        length = self._state_dicts[0][piece.key].numel() if piece.begin is not None else 0
        begin = 0
        while begin < line.numel():
            # Up to the end of the shard in which it begins.
            end = line.numel()
            if piece.begin is not None:
                end = min(end, ((begin + piece.begin) // length + 1) * length - piece.begin)
            line[begin:end].copy_(self.read(name, begin, end))
            begin = end
