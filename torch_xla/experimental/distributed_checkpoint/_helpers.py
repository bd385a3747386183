"""State dicts as flat ones, and their copies on the host."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch.distributed._shard._utils import narrow_tensor_by_index
from torch.distributed.checkpoint._dedup_save_plans import dedup_save_plans as dedup_tensors

from torch_xla import _XLAC
from torch_xla._src.device.names import is_xla_tensor
from torch_xla.distributed.spmd import XLAShard, XLAShardedTensor, wrap_if_sharded
from torch_xla.distributed.spmd.xla_sharding import unwrap_sharded_tensor

__all__ = ["dedup_tensors", "flatten_state_dict", "narrow_tensor_by_index", "set_element"]

StateDict = dict[str, Any]
Path = tuple[int | str, ...]


class _CpuShards:
    """The parts of a split tensor, on the host.

    Attributes:
        shards: The parts with their places. Those whose `replica_id` is not 0 are copies.
        global_shape: The sizes of the tensor.
    """

    def __init__(self, shards: list[XLAShard], global_shape: torch.Size) -> None:
        self.shards = shards
        self.global_shape = global_shape

    def __repr__(self) -> str:
        return f"_CpuShards({len(self.shards)} parts of {tuple(self.global_shape)})"


def _unwrap_xla_sharded_tensor(x: Any) -> Any:
    """The plain tensor that an `XLAShardedTensor` wraps; all else as it is."""
    return unwrap_sharded_tensor(x)


def _is_sharded_tensor(x: Any) -> bool:
    """True if it is a tensor that is split among devices, wrapped or plain."""
    return isinstance(wrap_if_sharded(_unwrap_xla_sharded_tensor(x)), XLAShardedTensor)


# --- flat state dicts -------------------------------------------------------------------------


def _keep_visiting_tensors(value: object) -> bool:
    return isinstance(value, (torch.Tensor, _CpuShards))


def _traverse_state_dict(
    state_dict: StateDict,
    visitor: Callable[[Path, object], None],
    keep_traversing: Callable[[object], bool] = _keep_visiting_tensors,
) -> None:
    """Calls `visitor` with the path and the value of each leaf.

    Dicts are walked, and lists that hold a dict or something that `keep_traversing` wants. All else
    is a leaf, a list of numbers or a tuple too. The keys of dicts appear in paths as text. So does
    PyTorch: checkpoints name the same values alike.
    """

    def is_walked(value: object) -> bool:
        if isinstance(value, list):
            return any(keep_traversing(entry) or is_walked(entry) for entry in value)
        return isinstance(value, Mapping)

    def leaves(path: Path, value: Any) -> Iterator[tuple[Path, object]]:
        if not is_walked(value):
            yield path, value
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                yield from leaves((*path, str(key)), entry)
        else:
            for i, entry in enumerate(value):
                yield from leaves((*path, i), entry)

    for path, value in leaves((), state_dict):
        visitor(path, value)


def flatten_state_dict(state_dict: StateDict) -> tuple[StateDict, dict[str, Path]]:
    """The leaves by their names, which are paths joined with dots, and the path of each name.

    Raises:
        ValueError: Two leaves have one name, as those of `{"a": {"b": 0}, "a.b": 1}`.
    """
    flat: StateDict = {}
    paths: dict[str, Path] = {}

    def add(path: Path, value: object) -> None:
        name = ".".join(map(str, path))
        if name in flat:
            raise ValueError(
                f"flatten_state_dict: expected names that differ, got {name!r} for {paths[name]} "
                f"and {path}. Rename a key."
            )
        flat[name], paths[name] = value, path

    _traverse_state_dict(state_dict, add)
    return flat, paths


def set_element(root_dict: StateDict, path: Path, value: object) -> None:
    """Puts a value at a path of nested dicts and lists, and makes what is missing on the way.

    A text in the path stands for the key of a dict that reads so: "0" finds 0.
    """

    def place(container: Any, part: int | str) -> Any:
        if isinstance(container, list):
            container.extend([None] * (int(part) + 1 - len(container)))
            return part
        return next((key for key in container if str(key) == part), part)

    container: Any = root_dict
    for part, following in zip(path, path[1:], strict=False):
        key = place(container, part)
        missing = container[key] is None if isinstance(container, list) else key not in container
        if missing:
            container[key] = {} if isinstance(following, str) else []
        container = container[key]
    container[place(container, path[-1])] = value


# --- copies on the host -----------------------------------------------------------------------


def _compute(tensors: list[torch.Tensor]) -> None:
    """Launches what xla tensors wait for, as one program; else each that is read would be one."""
    if tensors:
        _XLAC._xla_sync_multi(tensors, [], wait=False)


def _place(indices: Any, sizes: torch.Size) -> list[slice]:
    """Where a part lies in a tensor of these sizes, as an `XLAShard` says it."""
    return [slice(0, size, 1) for size in sizes] if indices is ... else list(indices)


def _is_empty(place: list[slice]) -> bool:
    return any(part.start >= part.stop for part in place)


def _distinct(copies: list[tuple[int, list[slice]]]) -> list[tuple[int, list[slice]]]:
    """For parts that (number among its copies, place) tell: the number in the list and the place of
    each that differs and has elements. Where none has, the first."""
    parts = [(i, place) for i, (copy_of, place) in enumerate(copies) if copy_of == 0]
    return [part for part in parts if not _is_empty(part[1])] or parts[:1]


def _places(tensor: torch.Tensor) -> list[tuple[int, list[slice]]]:
    """For each device, the number of its part of an xla tensor among copies, and the place.

    Raises:
        ValueError: The tensor is manual: it has no one value.
    """
    if _XLAC._is_manual(tensor):
        raise ValueError(
            "torch.distributed.checkpoint: expected a tensor with one value, got a manual one of "
            f"shape {list(tensor.shape)}, of which each device has its own. Save the whole, which "
            "disable_manual_sharding or DTensor.from_local makes."
        )
    (places,) = _XLAC._get_local_shard_replica_and_indices([tensor])
    return [(replica, _place(indices, tensor.shape)) for replica, indices in places]


def _distinct_places(tensor: torch.Tensor) -> list[tuple[int, list[slice]]]:
    """For each part of an xla tensor, a device that holds it, by its index, and its place."""
    return _distinct(_places(tensor))


def _held_places(places: list[tuple[int, list[slice]]]) -> list[list[slice]]:
    """The places of the parts that this process has, each once; the first where none has elements.

    Of another process's parts it may have copies, or nothing.
    """
    parts = {tuple((s.start, s.stop) for s in place): place for _, place in places}
    return [place for place in parts.values() if not _is_empty(place)] or [places[0][1]]


def _num_held(places: list[tuple[int, list[slice]]]) -> int:
    """The number of elements in parts that this process has."""
    return sum(math.prod(s.stop - s.start for s in place) for place in _held_places(places))


def _cpu_shards_from_tensors(tensors: list[torch.Tensor]) -> list[_CpuShards]:
    """Copies split xla tensors to the host, each part once; waits for their values."""
    places = [_places(t) for t in tensors]
    # `_get_local_shards` reads what each device holds. Where several hold the same part, reading
    # the whole reads it once; if this process has all of it.
    differ = [
        all(replica == 0 for replica, _ in of_devices) or _num_held(of_devices) < t.numel()
        for t, of_devices in zip(tensors, places, strict=True)
    ]
    parts = iter(_XLAC._get_local_shards([t for t, d in zip(tensors, differ, strict=True) if d]))
    wholes = iter(
        _XLAC._xla_get_cpu_tensors([t for t, d in zip(tensors, differ, strict=True) if not d])
    )
    copies = []
    for t, of_devices, are_parts in zip(tensors, places, differ, strict=True):
        held: Any = next(parts) if are_parts else next(wholes)
        shards = []
        for device, place in _distinct(of_devices):
            if are_parts:  # a part may be padded at its end
                data = held[device][0][tuple(slice(0, p.stop - p.start) for p in place)]
            else:
                data = held[tuple(place)]
            shards.append(XLAShard(data, place, "cpu", 0))
        copies.append(_CpuShards(shards, t.shape))
    return copies


def _sharded_cpu_state_dict(state_dict: StateDict) -> StateDict:
    """A copy of a state dict that shares nothing with it: split tensors as `_CpuShards`, other
    tensors on the CPU, all else by `copy.deepcopy`. Keys become texts.

    Waits for the values, and computes those that wait together.
    """
    flat, paths = flatten_state_dict(state_dict)
    flat = {name: _unwrap_xla_sharded_tensor(value) for name, value in flat.items()}
    on_xla = {name: value.detach() for name, value in flat.items() if is_xla_tensor(value)}
    _compute(list(on_xla.values()))
    split = {name: t for name, t in on_xla.items() if _is_sharded_tensor(t)}
    whole = {name: t for name, t in on_xla.items() if name not in split}
    read: dict[str, Any] = dict(
        zip(split, _cpu_shards_from_tensors(list(split.values())), strict=True)
    )
    read |= zip(whole, _XLAC._xla_get_cpu_tensors(list(whole.values())), strict=True)
    copied: StateDict = {}
    for name, value in flat.items():
        if name in read:
            value = read[name]
        elif isinstance(value, torch.Tensor):
            value = value.detach().to("cpu", copy=True)
        else:
            value = copy.deepcopy(value)
        set_element(copied, paths[name], value)
    return copied
