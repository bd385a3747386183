"""Planners of `torch.distributed.checkpoint` for tensors that are split among devices.

A split tensor is saved as one chunk for each of its distinct parts. Any chunks are loaded into a
tensor of any sharding: they meet on the host, and each device is sent its part.
"""

from __future__ import annotations

import collections
import dataclasses
import io
import math
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.checkpoint.utils import find_state_dict_object

from torch_xla._src.device.names import is_xla_tensor
from torch_xla.distributed.spmd import XLAShardedTensor, wrap_if_sharded
from torch_xla.experimental.distributed_checkpoint._helpers import (
    StateDict,
    _compute,
    _cpu_shards_from_tensors,
    _CpuShards,
    _distinct,
    _distinct_places,
    _held_places,
    _is_sharded_tensor,
    _num_held,
    _place,
    _places,
    _unwrap_xla_sharded_tensor,
    flatten_state_dict,
    set_element,
)
from torch_xla.experimental.distributed_checkpoint._helpers import (  # names that were here
    dedup_tensors as dedup_tensors,
)
from torch_xla.experimental.distributed_checkpoint._helpers import (
    narrow_tensor_by_index as narrow_tensor_by_index,
)


class SPMDSavePlanner(DefaultSavePlanner):
    """Saves state dicts that hold tensors on `xla`, split ones by their parts.

    What every process has is written by one of them; a state dict is flat in a checkpoint, with the
    names that PyTorch's planners give. PyTorch's own load planner reads it on any device.

    Example:
        >>> torch.distributed.checkpoint.save(
        ...     {"model": model.state_dict()}, checkpoint_id=path, planner=SPMDSavePlanner())
    """

    def __init__(self) -> None:
        super().__init__()
        # The tensor whose parts were asked for last: they come one after the other.
        self._read: tuple[str, _CpuShards] | None = None

    def set_up_planner(  # type: ignore[override]  # the order of arguments is torch_xla's, PyTorch names them
        self,
        state_dict: StateDict,
        is_coordinator: bool = False,
        storage_meta: StorageMeta | None = None,
    ) -> None:
        """Takes the state dict, and computes the tensors that wait. Called by every process."""
        flat, self.mappings = flatten_state_dict(state_dict)
        self.sharded_state_dict, self.unsharded_state_dict = _sorted_out(flat)
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        """The items that this process could write: reads no tensor."""
        whole, split = self.unsharded_state_dict, self.sharded_state_dict
        items = create_default_local_save_plan(whole, self.is_coordinator).items
        self.plan = SavePlan(items + _create_xla_write_items(split), planner_data=self.mappings)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The value of a name, or its part at an offset, on the host."""
        if index.fqn not in self.sharded_state_dict:
            return find_state_dict_object(self.unsharded_state_dict, index)
        for place, data in _parts_of(self._shards_of(index.fqn)):
            if _create_chunk_from_shard_index(place).offsets == index.offset:
                return data
        raise ValueError(
            f"SPMDSavePlanner: expected the offsets of a part of {index.fqn}, got {index.offset}."
        )

    def _shards_of(self, fqn: str) -> _CpuShards:
        value, read = self.sharded_state_dict[fqn], self._read
        if isinstance(value, _CpuShards):
            return value
        if read is None or read[0] != fqn:
            (shards,) = _cpu_shards_from_tensors([value.global_tensor.detach()])
            self._read = read = (fqn, shards)
        return read[1]


def _sorted_out(flat: StateDict) -> tuple[StateDict, StateDict]:
    """The split tensors of a flat state dict, wrapped, or as their parts on the host; and all else,
    tensors unwrapped. Computes the tensors that wait, which says how they are split."""
    plain = {name: _unwrap_xla_sharded_tensor(value) for name, value in flat.items()}
    _compute([t.detach() for t in plain.values() if is_xla_tensor(t)])
    split = {}
    for name, value in flat.items():
        value = value if isinstance(value, XLAShardedTensor) else wrap_if_sharded(value)
        if isinstance(value, _CpuShards) or _is_sharded_tensor(value):
            split[name] = value
    return split, {name: value for name, value in plain.items() if name not in split}


def _parts_of(shards: _CpuShards) -> list[tuple[list[slice], torch.Tensor]]:
    """The distinct parts of a tensor on the host: the place and the data of each."""
    copies = [(s.replica_id, _place(s.indices, shards.global_shape)) for s in shards.shards]
    return [(place, shards.shards[i].unpadded_data) for i, place in _distinct(copies)]


def _create_xla_write_items(state_dict: StateDict) -> list[WriteItem]:
    """An item for each distinct part of each split tensor of a flat state dict."""
    items: list[WriteItem] = []
    for fqn, value in state_dict.items():
        if isinstance(value, _CpuShards):
            items += _create_write_items_for_cpu_shards(fqn, value)
        else:
            items += _create_write_items_for_xla_sharded_tensor(fqn, value)
    return items


def _create_write_items_for_xla_sharded_tensor(
    fqn: str, t: torch.Tensor | XLAShardedTensor
) -> list[WriteItem]:
    plain = _unwrap_xla_sharded_tensor(t)
    properties = TensorProperties.create_from_tensor(plain)
    return [
        _create_write_item_from_indices(fqn, i, place, plain.shape, properties)
        for i, (_, place) in enumerate(_distinct_places(plain.detach()))
    ]


def _create_write_items_for_cpu_shards(fqn: str, cpu_shards: _CpuShards) -> list[WriteItem]:
    return [
        _create_write_item_from_indices(
            fqn,
            i,
            place,
            cpu_shards.global_shape,
            TensorProperties.create_from_tensor(data),
        )
        for i, (place, data) in enumerate(_parts_of(cpu_shards))
    ]


def _create_write_item_from_indices(
    fqn: str,
    shard_index: int,
    indices: list[slice],
    global_size: torch.Size,
    properties: TensorProperties,
) -> WriteItem:
    chunk = _create_chunk_from_shard_index(indices)
    return WriteItem(
        index=MetadataIndex(fqn, chunk.offsets, shard_index),
        type=WriteItemType.SHARD,
        tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=global_size),
    )


def _create_chunk_from_shard_index(index: list[slice]) -> ChunkStorageMetadata:
    return ChunkStorageMetadata(
        offsets=torch.Size([part.start for part in index]),
        sizes=torch.Size([part.stop - part.start for part in index]),
    )


class SPMDLoadPlanner(DefaultLoadPlanner):
    """Loads a checkpoint into a state dict that holds tensors on `xla`, in place.

    The chunks of a tensor meet on the host; the tensor keeps its sharding, and each device is sent
    its part. It makes no difference how the saved tensors were split, and which planner saved them.

    Example:
        >>> state = {"model": model.state_dict()}
        >>> torch.distributed.checkpoint.load(
        ...     state, checkpoint_id=path, planner=SPMDLoadPlanner())
        >>> model.load_state_dict(state["model"])
    """

    def __init__(self) -> None:
        super().__init__()
        self._on_host: dict[str, torch.Tensor] = {}  # tensors of which a part has been read
        self._unread: collections.Counter[str] = collections.Counter()  # their items to come

    def set_up_planner(
        self,
        state_dict: StateDict,
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        """Takes the state dict, and computes the tensors that wait. Called by every process."""
        super().set_up_planner(state_dict, metadata, is_coordinator)
        # PyTorch asks a wrapped one for its mesh, which what is computed has none of.
        self.state_dict = {n: _unwrap_xla_sharded_tensor(v) for n, v in self.state_dict.items()}
        self.sharded_state_dict, self.unsharded_state_dict = _sorted_out(self.state_dict)

    def create_local_plan(self) -> LoadPlan:
        """The items to read: one for each part of each tensor, and for each chunk in it.

        Raises:
            RuntimeError: The checkpoint lacks a name of the state dict.
            ValueError: Sizes differ, or the chunks of a tensor do not cover it.
        """
        plan = super().create_local_plan()  # also finds the names that checkpoints used to have
        self.sharded_state_dict, self.unsharded_state_dict = _sorted_out(self.state_dict)
        on_xla = {fqn: value for fqn, value in self.state_dict.items() if is_xla_tensor(value)}
        others = [item for item in plan.items if item.dest_index.fqn not in on_xla]
        assert self.metadata is not None  # set_up_planner was called
        items = _create_xla_read_items(on_xla, self.metadata)
        self._on_host.clear()
        self._unread = collections.Counter(item.dest_index.fqn for item in items)
        return dataclasses.replace(plan, items=others + items)

    def finish_plan(self, central_plan: LoadPlan) -> LoadPlan:
        """The plan as it is: each process reads what it needs."""
        return central_plan

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        """Puts a value that is no tensor into the state dict."""
        path = self.mappings[read_item.dest_index.fqn]
        set_element(self.original_state_dict, path, torch.load(value, weights_only=False))

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """The tensor to write to: of a part of an xla tensor, its place on the host."""
        target = self.state_dict[index.fqn]
        if not is_xla_tensor(target):
            return find_state_dict_object(self.state_dict, index)
        if index.fqn not in self._on_host:
            self._on_host[index.fqn] = torch.empty(target.shape, dtype=target.dtype)
        return self._on_host[index.fqn][tuple(slice(start, None) for start in index.offset or ())]

    def commit_tensor(self, read_item: ReadItem, tensor: torch.Tensor) -> None:
        """Notes that an item was read; with its last one, a tensor goes to the devices."""
        fqn = read_item.dest_index.fqn
        if fqn not in self._on_host:
            return
        self._unread[fqn] -= 1
        if self._unread[fqn] == 0:
            with torch.no_grad():
                _unwrap_xla_sharded_tensor(self.state_dict[fqn]).copy_(self._on_host.pop(fqn))


def _create_xla_read_items(sharded_state_dict: StateDict, metadata: Metadata) -> list[ReadItem]:
    """Items that fill the xla tensors of a flat state dict, each distinct part, whatever chunks
    they are saved in."""
    items: list[ReadItem] = []
    for fqn, t in sharded_state_dict.items():
        plain, saved = _unwrap_xla_sharded_tensor(t).detach(), metadata.state_dict_metadata[fqn]
        places = _held_places(_places(plain))
        of_tensor = []
        if isinstance(saved, TensorStorageMetadata):
            chunks = [_create_chunk_from_shard_index(place) for place in places]
            of_tensor = create_read_items_for_chunk_list(fqn, saved, chunks)
        read = sum(math.prod(item.lengths) for item in of_tensor)
        held = _num_held(_places(plain))
        if read != held:
            raise ValueError(
                f"SPMDLoadPlanner: expected chunks of the {held} elements of {fqn}, got {read} in "
                "the checkpoint."
            )
        items += of_tensor
    return items
