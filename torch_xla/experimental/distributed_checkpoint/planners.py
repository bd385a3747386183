"""How `torch.distributed.checkpoint` saves and loads tensors that are split among devices.

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
    create_default_local_load_plan,
    create_default_local_save_plan,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    LoadPlan,
    ReadItem,
    SavePlan,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)

from torch_xla._src.names import is_xla_tensor
from torch_xla.distributed.spmd import XLAShardedTensor
from torch_xla.experimental.distributed_checkpoint._helpers import (
    StateDict,
    _compute,
    _cpu_shards_from_tensors,
    _CpuShards,
    _distinct_places,
    _is_sharded_tensor,
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

    def set_up_planner(  # the order of arguments is torch_xla's, PyTorch names them
        self,
        state_dict: StateDict,
        is_coordinator: bool = False,
        storage_meta: StorageMeta | None = None,
    ) -> None:
        """Takes the state dict. Called by every process."""
        flat, self.mappings = flatten_state_dict(state_dict)
        self.state_dict = {n: _unwrap_xla_sharded_tensor(value) for n, value in flat.items()}
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        """What this process could write: computes the tensors that wait, reads none."""
        _compute([t.detach() for t in self.state_dict.values() if is_xla_tensor(t)])
        split = {n: v for n, v in self.state_dict.items() if _is_split(v)}
        others = {n: v for n, v in self.state_dict.items() if n not in split}
        items = create_default_local_save_plan(others, self.is_coordinator).items
        self.plan = SavePlan(items + _create_xla_write_items(split), planner_data=self.mappings)
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """The value of a name, or its part at an offset, on the host."""
        value = self.state_dict[index.fqn]
        if not _is_split(value):
            return super().lookup_object(index)
        for shard in self._shards_of(index.fqn, value).shards:
            if _create_chunk_from_shard_index(shard.indices).offsets == index.offset:
                return shard.data
        raise ValueError(
            f"SPMDSavePlanner: expected the offsets of a part of {index.fqn}, got {index.offset}."
        )

    def _shards_of(self, fqn: str, value: Any) -> _CpuShards:
        if isinstance(value, _CpuShards):
            return value
        read = self._read
        if read is None or read[0] != fqn:
            (shards,) = _cpu_shards_from_tensors([value.detach()])
            self._read = read = (fqn, shards)
        return read[1]


def _is_split(value: Any) -> bool:
    return isinstance(value, _CpuShards) or _is_sharded_tensor(value)


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
        _create_write_item_from_indices(fqn, i, indices, plain.shape, properties)
        for i, (_, indices) in enumerate(_distinct_places(plain.detach()))
    ]


def _create_write_items_for_cpu_shards(fqn: str, cpu_shards: _CpuShards) -> list[WriteItem]:
    return [
        _create_write_item_from_indices(
            fqn,
            i,
            shard.indices,
            cpu_shards.global_shape,
            TensorProperties.create_from_tensor(shard.data),
        )
        for i, shard in enumerate(cpu_shards.shards)
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

    def create_local_plan(self) -> LoadPlan:
        """What is to be read.

        Raises:
            RuntimeError: The checkpoint lacks a name of the state dict.
            ValueError: Sizes differ, or the chunks of a tensor do not cover it.
        """
        plan = super().create_local_plan()  # also finds the names that checkpoints used to have
        on_xla = {fqn: value for fqn, value in self.state_dict.items() if is_xla_tensor(value)}
        others = [item for item in plan.items if item.dest_index.fqn not in on_xla]
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
        """The tensor to write to: of an xla tensor, its place on the host."""
        target = self.state_dict[index.fqn]
        if not is_xla_tensor(target):
            return super().lookup_tensor(index)
        if index.fqn not in self._on_host:
            self._on_host[index.fqn] = torch.empty(target.shape, dtype=target.dtype)
        return self._on_host[index.fqn]

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
    """Items that fill the tensors of a flat state dict, whatever chunks they are saved in."""
    items = create_default_local_load_plan(sharded_state_dict, metadata).items
    read: collections.Counter[str] = collections.Counter()
    for item in items:
        read[item.dest_index.fqn] += math.prod(item.lengths)
    for fqn, t in sharded_state_dict.items():
        if read[fqn] != t.numel():
            raise ValueError(
                f"SPMDLoadPlanner: expected chunks of the {t.numel()} elements of {fqn}, got "
                f"{read[fqn]} in the checkpoint."
            )
    return items
