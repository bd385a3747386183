"""Loads checkpoints of another number of ranks, or of the whole model, into this rank's shards."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from torch_xla.distributed.fsdp import _shards
from torch_xla.distributed.fsdp._pieces import OfStateDict, Source
from torch_xla.distributed.fsdp._shards import HoldsShards
from torch_xla.distributed.fsdp.state_dict_utils import open_shards


class LoadedKeys(NamedTuple):
    """The names that a checkpoint lacks, and those that it has more."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load_full_state_dict(
    model: nn.Module, state_dict: Mapping[str, Any], strict: bool = True
) -> LoadedKeys:
    """Loads the state dict of the model that was wrapped: each rank takes its shards of it.

    Args:
        model: A model with wrappers of `XlaFullyShardedDataParallel`.
        state_dict: The state dict; `torch.load(path, mmap=True)` reads only what is taken.
        strict: Whether it is an error if a tensor is missing, or is not one of the model.
    """
    return _load(model, OfStateDict(state_dict), strict)


def load_sharded_model_checkpoints(
    model: nn.Module, ckpt_prefix: str, ckpt_suffix: str = "*.pth", strict: bool = True
) -> LoadedKeys:
    """Loads the checkpoints of a job of any number of ranks: each rank reads its part of them.

    Args:
        model: A model with wrappers of `XlaFullyShardedDataParallel`, which may be others than
            those of the checkpoints.
        ckpt_prefix: What the paths of the files begin with.
        ckpt_suffix: A pattern for what follows.
        strict: Whether it is an error if a tensor is missing, or is not one of the model.
    """
    return _load(model, open_shards(ckpt_prefix, ckpt_suffix), strict)


class Part(NamedTuple):
    """A parameter in the line of a shard's full value."""

    names: list[str]  # of all places where modules have it
    size: torch.Size
    begin: int


@torch.no_grad()
def _load(model: nn.Module, source: Source, strict: bool) -> LoadedKeys:
    there = set(source.names())
    missing: list[str] = []
    taken: set[str] = set()
    writes: list[Callable[[], None]] = []  # once nothing is missing

    def find(names: list[str], size: torch.Size) -> str | None:
        taken.update(names)
        found = [name for name in names if name in there]
        if not found:
            missing.append(names[0])
            return None
        if source.size(found[0]) != size:
            raise RuntimeError(
                f"load_state_dict: expected {found[0]} of shape {list(size)}, got "
                f"{list(source.size(found[0]))}."
            )
        return found[0]

    for shard, rank, parts in shards_of(model):
        found = [(part, find(part.names, part.size)) for part in parts]
        here = [(part, name) for part, name in found if name is not None]
        writes.append(functools.partial(_write_shard, shard, rank, here, source))
    for key, value in nn.Module.state_dict(model).items():
        if _shards.split_name(key) is None and isinstance(value, torch.Tensor):
            name = find([_shards.original_name(key)], value.shape)
            if name is not None:
                writes.append(functools.partial(_write_buffer, value, name, source))
    keys = LoadedKeys(missing, sorted(there - taken))
    if strict and (keys.missing_keys or keys.unexpected_keys):
        raise RuntimeError(
            f"load_state_dict: expected the tensors of the model; missing: {keys.missing_keys}, "
            f"not of the model: {keys.unexpected_keys}. Pass strict=False to load the others."
        )
    for write in writes:
        write()
    return keys


def _write_shard(
    shard: torch.Tensor, rank: int, parts: list[tuple[Part, str]], source: Source
) -> None:
    line = shard.detach().cpu().reshape(-1).clone()
    read_parts(line, rank, parts, source)
    shard.copy_(line.view(shard.shape))


def read_parts(
    line: torch.Tensor, rank: int, parts: list[tuple[Part, str]], source: Source
) -> None:
    """Reads those elements of parameters that a rank's shard holds.

    Args:
        line: The shard in a line, on the CPU; what no part covers stays.
        rank: The rank.
        parts: What the line of all shards holds, with the name of each in the source.
        source: Where the elements are.
    """
    length = line.numel()
    for part, name in parts:
        begin = max(rank * length, part.begin)
        end = min((rank + 1) * length, part.begin + part.size.numel())
        if begin < end:
            values = source.read(name, begin - part.begin, end - part.begin)
            line[begin - rank * length : end - rank * length].copy_(values)


def _write_buffer(buffer: torch.Tensor, name: str, source: Source) -> None:
    buffer.copy_(source.whole(name))


def shards_of(model: nn.Module) -> Iterator[tuple[torch.Tensor, int, list[Part]]]:
    """All shards of a model, the rank whose they are, and which parameters their lines hold."""
    for module_name, m in model.named_modules():
        if isinstance(m, HoldsShards):
            prefix = f"{module_name}." if module_name else ""
            for shard, names_and_parts in zip(m.sharded_params, m.parts_of_shards(), strict=True):
                parts, begin = [], 0
                for names, size in names_and_parts:
                    own = [_shards.original_name(prefix + name) for name in names]
                    parts.append(Part(own, size, begin))
                    begin += size.numel()
                yield shard, m.rank, parts
