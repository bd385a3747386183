"""One checkpoint of a whole model from those of its ranks."""

from __future__ import annotations

import glob
import mmap
import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torch_xla.distributed.fsdp._pieces import OfShards


def consolidate_sharded_state_dicts(
    state_dict_list: Sequence[Mapping[str, Any]], shard_metadata: Mapping[str, Any]
) -> OrderedDict[str, Any]:
    """The state dict of the model that was wrapped.

    Args:
        state_dict_list: `model.state_dict()` of each rank, in the order of ranks.
        shard_metadata: `model.get_shard_metadata()` of any rank.
    """
    source = OfShards(state_dict_list, shard_metadata)
    return OrderedDict((name, source.whole(name)) for name in source.names())


def consolidate_sharded_model_checkpoints(
    ckpt_prefix: str, ckpt_suffix: str = "*.pth", save_path: str = "", save_model: bool = True
) -> tuple[Mapping[str, Any], str | None]:
    """Makes one checkpoint, of the model that was wrapped, from those of all ranks.

    With `save_model` it takes the memory of a part of one tensor: files are read and written where
    they lie.

    Args:
        ckpt_prefix: What the paths of the ranks' files begin with.
        ckpt_suffix: A pattern for what follows. Each file holds a dict with `model`, the rank's
            `model.state_dict()`, and `shard_metadata`, its `model.get_shard_metadata()`.
        save_path: The path of the result, a dict with `model`; without it
            `ckpt_prefix + "_consolidated.pth"`.
        save_model: Whether it is saved.

    Returns:
        The state dict, which is read from the file where it is used, and the file's path; None for
        the path if it was not saved.
    """
    path = save_path or f"{ckpt_prefix}_consolidated.pth"
    source = open_shards(ckpt_prefix, ckpt_suffix, but=path)
    if not save_model:
        return OrderedDict((name, source.whole(name)) for name in source.names()), None
    partial = f"{path}.partial"
    _write(source, partial)
    os.replace(partial, path)
    print(f"saved consolidated model to {path}")
    return load_mapped(path)["model"], path


def open_shards(ckpt_prefix: str, ckpt_suffix: str = "*.pth", but: str = "") -> OfShards:
    """The models of the checkpoints of all ranks, as one source of which parts can be read.

    Arguments and errors are those of `open_checkpoints`.
    """
    checkpoints = open_checkpoints(ckpt_prefix, ckpt_suffix, but)
    return OfShards([c["model"] for c in checkpoints], checkpoints[0]["shard_metadata"])


def open_checkpoints(
    ckpt_prefix: str, ckpt_suffix: str = "*.pth", but: str = ""
) -> list[Mapping[str, Any]]:
    """The checkpoints of all ranks, in their order; tensors are read where they are used.

    Args:
        ckpt_prefix: What the paths of the files begin with.
        ckpt_suffix: A pattern for what follows.
        but: A path that is not one of them.

    Raises:
        FileNotFoundError: There are none.
        ValueError: They are not those of ranks 0 to N-1 of a job of N.
    """
    pattern = glob.escape(ckpt_prefix) + ckpt_suffix
    paths = [path for path in glob.glob(pattern) if path != but]
    if not paths:
        raise FileNotFoundError(f"sharded checkpoints: expected files {pattern}, got none.")
    print(f"found {len(paths)} checkpoint files in {ckpt_prefix}{ckpt_suffix}")
    checkpoints = []
    for path in paths:
        checkpoint = load_mapped(path)
        if not isinstance(checkpoint, Mapping) or not {"model", "shard_metadata"} <= {*checkpoint}:
            raise ValueError(
                f"sharded checkpoints: expected a dict with 'model' and 'shard_metadata' in {path}."
            )
        checkpoints.append(checkpoint)
    checkpoints.sort(key=lambda c: c["shard_metadata"]["rank"])
    metadata = checkpoints[0]["shard_metadata"]
    ranks = [c["shard_metadata"]["rank"] for c in checkpoints]
    if ranks != list(range(metadata["world_size"])):
        raise ValueError(
            f"sharded checkpoints: expected files of ranks 0 to {metadata['world_size'] - 1}, got "
            f"those of ranks {ranks} in {sorted(paths)}."
        )
    return checkpoints


def load_mapped(path: str) -> Any:
    """A checkpoint on the CPU, whose tensors are read from the file where they are used."""
    if not _is_archive(path):
        return torch.load(path, map_location="cpu")  # of PyTorch before 1.6
    return torch.load(path, map_location="cpu", mmap=True)


def _is_archive(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"PK"


def _write(source: OfShards, path: str) -> None:
    model = OrderedDict(
        (
            name,
            torch.empty(source.size(name), dtype=source.dtype(name))  # nothing touches its memory
            if source.is_tensor(name)
            else source.whole(name),
        )
        for name in source.names()
    )
    with torch.serialization.skip_data():
        torch.save({"model": model}, path)
    with torch.serialization.set_default_mmap_options(mmap.MAP_SHARED):
        written = torch.load(path, mmap=True, map_location="cpu")["model"]
    for name, tensor in written.items():
        if isinstance(tensor, torch.Tensor):
            source.fill(name, tensor)
