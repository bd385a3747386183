"""Loads the optimizer's state of a job of another number of ranks into this rank's shards."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from torch_xla.distributed.fsdp import _shards
from torch_xla.distributed.fsdp._pieces import OfShards, pieces
from torch_xla.distributed.fsdp.loading import Part, read_parts, shards_of
from torch_xla.distributed.fsdp.state_dict_utils import open_checkpoints


def load_sharded_optimizer_checkpoints(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    ckpt_prefix: str,
    ckpt_suffix: str = "*.pth",
) -> None:
    """Loads the optimizer's state of a job of any number of ranks: each rank reads its part.

    Each file holds a dict with `model`, `shard_metadata` and `optimizer`, the rank's
    `optimizer.state_dict()`. The optimizer that was saved and this one have the same groups of
    parameters. Made of `model.named_parameters()`, each saves its parameters' names, and the
    wrappers may be others than those of the checkpoints. Without names, wrappers and the order of
    parameters must be the same.

    Args:
        model: A model with wrappers of `XlaFullyShardedDataParallel`.
        optimizer: An optimizer of its parameters.
        ckpt_prefix: What the paths of the files begin with.
        ckpt_suffix: A pattern for what follows.

    Raises:
        FileNotFoundError: There are no such files.
        ValueError: They are not those of ranks 0 to N-1 of a job of N, have no `optimizer`, or
            their groups of parameters are not those of `optimizer`.
    """
    checkpoints = open_checkpoints(ckpt_prefix, ckpt_suffix)
    for checkpoint in checkpoints:
        if "optimizer" not in checkpoint:
            raise ValueError(
                f"load_sharded_optimizer_checkpoints: expected 'optimizer' in each checkpoint, got "
                f"{sorted(checkpoint)}."
            )
    held = _held_by(model)
    for index, parameter in _numbered(optimizer):
        if parameter not in held:
            raise ValueError(
                "load_sharded_optimizer_checkpoints: expected an optimizer of the model's "
                f"parameters, made after wrapping; its parameter {index} is none."
            )
    saved = _Saved(checkpoints, optimizer, held)
    own = optimizer.state_dict()
    _compare_groups(saved.groups, own["param_groups"])
    state: dict[int, dict[str, Any]] = {}
    for index, parameter in _numbered(optimizer):
        if found := saved.of(parameter, *held[parameter]):
            state[index] = found
    groups = [
        {**old, **{k: new[k] for k in ("params", "param_names") if k in new}}
        for old, new in zip(saved.groups, own["param_groups"], strict=True)
    ]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


class _Saved:
    """The state of parameters by what it is (`exp_avg`, for example) and by the model's names."""

    def __init__(
        self,
        checkpoints: Sequence[Mapping[str, Any]],
        optimizer: torch.optim.Optimizer,
        held: Mapping[torch.Tensor, tuple[str, int, list[Part]]],
    ):
        first = checkpoints[0]
        self.groups: list[dict[str, Any]] = first["optimizer"]["param_groups"]
        key_of = _names(self.groups)
        if key_of is None:
            _compare_groups(self.groups, optimizer.param_groups)
            names = [held[p][0] for _, p in _numbered(optimizer)]
            numbers = [i for group in self.groups for i in group["params"]]
            key_of = dict(zip(numbers, names, strict=True))
        unknown = sorted({*key_of.values()} - {*first["model"]})
        if unknown:
            raise ValueError(
                f"load_sharded_optimizer_checkpoints: expected parameters of the checkpoints, got "
                f"{unknown[0]}. Make both optimizers of model.named_parameters() to load what "
                "other wrappers saved."
            )
        states = [c["optimizer"]["state"] for c in checkpoints]
        shapes = {key: first["model"][key].shape for key in key_of.values()}
        # Tensors have an element for each of a shard, numbers are the same on all ranks.
        tensors: dict[str, list[dict[str, torch.Tensor]]] = {}
        self._others: dict[str, dict[str, Any]] = {}
        for index, key in key_of.items():
            for kind, value in states[0].get(index, {}).items():
                if isinstance(value, torch.Tensor) and value.dim():
                    if value.shape != shapes[key]:
                        raise ValueError(
                            "load_sharded_optimizer_checkpoints: expected state of a parameter's "
                            f"shape, {list(shapes[key])}, got {kind!r} of {list(value.shape)}."
                        )
                    parts = tensors.setdefault(kind, [{} for _ in states])
                    for part, of_rank in zip(parts, states, strict=True):
                        part[key] = of_rank[index][kind]
                else:
                    self._others.setdefault(key, {})[kind] = value
        metadata = first["shard_metadata"]
        self._tensors = {kind: OfShards(parts, metadata) for kind, parts in tensors.items()}
        self._key_of_name = {n: piece.key for n, piece in pieces(first["model"], metadata).items()}

    def of(self, parameter: torch.Tensor, key: str, rank: int, parts: list[Part]) -> dict[str, Any]:
        """A parameter's state; empty if none was saved."""
        result: dict[str, Any] = {}
        for kind, source in self._tensors.items():
            there = {*source.names()}
            here = [(part, name) for part in parts for name in part.names if name in there]
            if here:
                dtype = source.dtype(here[0][1])
                line = torch.zeros(parameter.numel(), dtype=dtype)
                read_parts(line, rank, here, source)
                result[kind] = line.view(parameter.shape)
        others = [
            self._others.get(self._key_of_name.get(name, ""), {})
            for part in parts
            for name in part.names
        ]
        for kind, value in ((k, v) for other in others for k, v in other.items()):
            if kind in result and not _equal(result[kind], value):
                raise ValueError(
                    f"load_sharded_optimizer_checkpoints: expected one {kind!r} for the parameters "
                    f"that {key} joins, got {result[kind]} and {value}."
                )
            result[kind] = copy.deepcopy(value)  # others may get it, too
        return result


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def _names(groups: Sequence[Mapping[str, Any]]) -> dict[int, str] | None:
    """The names of parameters by their numbers, if they were saved."""
    if any("param_names" not in group for group in groups):
        return None
    return {
        index: _shards.key_in_state_dict(name)
        for group in groups
        for index, name in zip(group["params"], group["param_names"], strict=True)
    }


def _numbered(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, torch.Tensor]]:
    """The parameters with the numbers that state dicts give them."""
    return enumerate(p for group in optimizer.param_groups for p in group["params"])


def _held_by(model: nn.Module) -> dict[torch.Tensor, tuple[str, int, list[Part]]]:
    """A model's parameters: their keys in its state dict, this rank, and what their lines hold."""
    names: dict[torch.Tensor, str] = {
        p: _shards.key_in_state_dict(name) for name, p in model.named_parameters()
    }
    held: dict[torch.Tensor, tuple[str, int, list[Part]]] = {
        p: (name, 0, [Part([_shards.original_name(name)], p.shape, 0)]) for p, name in names.items()
    }
    for shard, rank, parts in shards_of(model):
        held[shard] = (names[shard], rank, parts)
    return held


def _compare_groups(saved: Sequence[Mapping[str, Any]], own: Sequence[Mapping[str, Any]]) -> None:
    """Compares groups of parameters; their sizes too where nothing has names."""
    named = all("param_names" in group for group in saved)
    sizes = [[1 if named else len(g["params"]) for g in groups] for groups in (saved, own)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            "load_sharded_optimizer_checkpoints: expected groups of as many parameters as the "
            f"optimizer has, {[len(g['params']) for g in own]}, got "
            f"{[len(g['params']) for g in saved]} in the checkpoints. Make both optimizers of "
            "model.named_parameters() to load what other wrappers saved."
        )
