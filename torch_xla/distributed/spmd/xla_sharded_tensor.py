"""A tensor that is split among devices, with a view of its shards."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from torch_xla import _XLAC


class XLAShard:
    """The part of a tensor on one device.

    Attributes:
        data: The part, on the CPU.
        indices: Where it lies in the tensor: a slice for each dimension, or `...` for all of it.
        shard_device: The device's name, "CPU:0" for example.
        replica_id: Numbers the devices that hold this same part.
    """

    def __init__(
        self,
        data: torch.Tensor,
        indices: types.EllipsisType | list[slice],
        shard_device: str,
        replica_id: int,
    ):
        self.data = data
        self.indices = indices
        self.shard_device = shard_device
        self.replica_id = replica_id

    @property
    def unpadded_data(self) -> torch.Tensor:
        """The part without padding. Parts are equal here and have none: it is `data`."""
        return self.data

    def __repr__(self) -> str:
        return (
            f"XLAShard(shape={tuple(self.data.shape)}, indices={self.indices}, "
            f"device={self.shard_device}, replica_id={self.replica_id})"
        )


class XLAShardedTensor(torch.Tensor):
    """A tensor on `xla` together with how it is split; computes as the tensor itself does.

    `mark_sharding` makes it. Functions of PyTorch take it for `global_tensor`, and give plain
    tensors.

    Args:
        elem: The tensor.
        mesh_shape: The sizes of the mesh, for display.
        partition_spec: What each dimension is split along, for display.
    """

    global_tensor: torch.Tensor
    mesh_shape: tuple[int, ...] | None
    partition_spec: tuple[Any, ...] | None

    @staticmethod
    def __new__(
        cls,
        elem: torch.Tensor,
        mesh_shape: tuple[int, ...] | None = None,
        partition_spec: tuple[Any, ...] | None = None,
    ):
        if isinstance(elem, XLAShardedTensor):
            elem = elem.global_tensor
        wrapper = torch.Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            layout=elem.layout,
            device=elem.device,
            requires_grad=elem.requires_grad,
        )
        wrapper.__dict__["global_tensor"] = elem
        wrapper.__dict__["mesh_shape"] = mesh_shape
        wrapper.__dict__["partition_spec"] = partition_spec
        return wrapper

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = cls._call_plain(func, args, kwargs)
        if func in (
            torch.Tensor.detach,
            torch.Tensor.requires_grad_,
        ):  # nn.Parameter needs its class
            return cls(result, args[0].mesh_shape, args[0].partition_spec)
        return result

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        """For callers that pass PyTorch's Python layer by."""
        return cls._call_plain(func, args, kwargs)

    @classmethod
    def _call_plain(cls, func, args, kwargs):
        args, kwargs = tree_map_only(cls, lambda t: t.global_tensor, (args, kwargs or {}))
        return func(*args, **kwargs)

    @property
    def local_shards(self) -> list[XLAShard]:
        """The part on each device of this process, in the order of the devices. Waits for the
        value."""
        (shards,) = _XLAC._get_local_shards([self.__dict__["global_tensor"]])
        (places,) = _XLAC._get_local_shard_replica_and_indices([self.__dict__["global_tensor"]])
        return [
            XLAShard(data, indices, device, replica)
            for (data, device), (replica, indices) in zip(shards, places, strict=True)
        ]

    def load_local_shards_(self, shards: Sequence[XLAShard]) -> None:
        """Overwrites the tensor with the data of shards, as `local_shards` gives them.

        Raises:
            ValueError: A device has no shard among them, or one of another shape.
        """
        _XLAC._load_local_shards(
            self.__dict__["global_tensor"],
            [shard.data for shard in shards],
            [shard.shard_device for shard in shards],
        )

    @property
    def sharding_spec(self) -> str:
        """How the tensor is split, as GSPMD writes it."""
        return _XLAC._get_xla_sharding_spec(self.__dict__["global_tensor"])

    @property
    def sharding_type(self) -> Any:
        """The `ShardingType`; None where nothing says how the tensor is split."""
        from torch_xla.distributed.spmd.xla_sharding import ShardingType

        kind = _XLAC._get_xla_sharding_type(self.__dict__["global_tensor"])
        return None if kind is None else ShardingType(kind)

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        return f"XLAShardedTensor({self.__dict__['global_tensor']!r}, {self.sharding_spec})"


@contextlib.contextmanager
def no_dispatch() -> Iterator[None]:
    """Calls within it pass `__torch_dispatch__` by."""
    guard = torch._C._DisableTorchDispatch()
    try:
        yield
    finally:
        del guard
