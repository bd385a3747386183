"""A tensor that is split among devices, with a view of its shards."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_map_only

from torch_xla import _XLAC
from torch_xla._src.uncaptured import skipped

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

    from torch_xla.distributed.spmd.xla_sharding import Mesh


class XLAShard:
    """The part of a tensor on one device.

    Attributes:
        data: The part, on the CPU.
        indices: Where it lies in the tensor: a slice for each dimension, or `...` for all of it.
            What a device has of a manual tensor is all of it, too, and no other device's.
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


def _hand_over_gradient(alias: XLAShardedTensor) -> None:
    tensor = alias.global_tensor
    with torch._C.DisableTorchFunctionSubclass():
        gradient, alias.grad = alias.grad, None
    if gradient is not None:
        tensor.grad = gradient if tensor.grad is None else tensor.grad + gradient


@skipped
def sharding_of(t: torch.Tensor) -> str:
    """How a plain tensor is split, as GSPMD writes it; not known, "", while a graph is captured."""
    return "" if torch.compiler.is_dynamo_compiling() else _XLAC._get_xla_sharding_spec(t)


def _constraint_of(t: torch.Tensor) -> str | None:
    from torch_xla.distributed.spmd.constraints import constraint_of

    return constraint_of(t)


class _Asked:
    """An attribute that is read from the value each time. torch._dynamo captures what a property
    does; of this it takes what it is and guards on that.
    """

    def __init__(self, read: Callable[[torch.Tensor], Any]):
        self._read = read

    @skipped
    def __get__(self, instance: XLAShardedTensor | None, owner: type) -> Any:
        return self if instance is None else self._read(instance.global_tensor)

    def __set__(self, instance: XLAShardedTensor, value: Any) -> None:
        """What is set is for the rest of a graph that is captured."""


class XLAShardedTensor(torch.Tensor):
    """A tensor on `xla` together with how it is split; computes as the tensor itself does.

    `mark_sharding` makes it. Functions of PyTorch take it for `global_tensor`, and give plain
    tensors. C++ that they do not pass, as that of `torch.autograd.Function`, finds an alias of it.

    Args:
        elem: The tensor.
        mesh_shape: The sizes of the mesh, for display.
        partition_spec: What each dimension is split along, for display.
        mesh: The `Mesh`, for what DTensor has: `placements` and the like.
    """

    global_tensor: torch.Tensor = None  # type: ignore[assignment]  # each has its own
    mesh_shape: tuple[int, ...] | None = None
    partition_spec: tuple[Any, ...] | None = None
    mesh: Mesh | None = None

    # How the tensor is split, as GSPMD writes it, and the constraint that says it, if any.
    sharding_spec: str = _Asked(_XLAC._get_xla_sharding_spec)
    constraint: str | None = _Asked(_constraint_of)

    @staticmethod
    def __new__(
        cls,
        elem: torch.Tensor,
        mesh_shape: tuple[int, ...] | None = None,
        partition_spec: tuple[Any, ...] | None = None,
        mesh: Mesh | None = None,
    ):
        if isinstance(elem, XLAShardedTensor):
            elem = elem.global_tensor
        alias = elem.as_subclass(cls)
        alias.__dict__["global_tensor"] = elem
        alias.__dict__["mesh_shape"] = mesh_shape
        alias.__dict__["partition_spec"] = partition_spec
        alias.__dict__["mesh"] = mesh
        return alias

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        plain, named = tree_map_only(cls, lambda t: t.global_tensor, (args, kwargs or {}))
        result = func(*plain, **named)
        if func in (torch.Tensor.requires_grad_, torch.Tensor.requires_grad.__set__):
            args[0]._want_what_the_tensor_wants()
        if func in (
            torch.Tensor.detach,
            torch.Tensor.requires_grad_,
        ):  # nn.Parameter needs its class
            given = args[0]
            return cls(result, given.mesh_shape, given.partition_spec, given.mesh)
        return result

    def _want_what_the_tensor_wants(self) -> None:
        """The alias, too, has a gradient from now on, or none; it goes to the tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            if self.grad_fn is not None:  # the tensor wanted one when the alias was made
                return
            self.requires_grad_(self.global_tensor.requires_grad)
            if self.requires_grad and not self._post_accumulate_grad_hooks:
                self.register_post_accumulate_grad_hook(_hand_over_gradient)

    @property
    def local_shards(self) -> list[XLAShard]:
        """The part on each device of this process, in the order of the devices. Waits for the
        value."""
        (shards,) = _XLAC._get_local_shards([self.global_tensor])
        (places,) = _XLAC._get_local_shard_replica_and_indices([self.global_tensor])
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
            self.global_tensor,
            [shard.data for shard in shards],
            [shard.shard_device for shard in shards],
        )

    @property
    def sharding_type(self) -> Any:
        """The `ShardingType`; None where nothing says how the tensor is split."""
        from torch_xla.distributed.spmd.xla_sharding import ShardingType

        kind = _XLAC._get_xla_sharding_type(self.global_tensor)
        return None if kind is None else ShardingType(kind)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh as a `DeviceMesh` of PyTorch's.

        Raises:
            RuntimeError: Nothing tells along which mesh the tensor was split.
        """
        from torch_xla.distributed.spmd.placements import convert_to_device_mesh

        if self.mesh is None:
            raise RuntimeError(
                "XLAShardedTensor: expected a tensor that mark_sharding or distribute_tensor has "
                f"split along a mesh, got one of which only '{self.sharding_spec}' is known."
            )
        return convert_to_device_mesh(self.mesh)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """For each dimension of `device_mesh` the `Shard` or `Replicate` that says what it splits;
        `ByCompiler` while the compiler has the choice.
        """
        from torch_xla.distributed.spmd.placements import placements_of

        return placements_of(self.sharding_spec, self.device_mesh, self.dim())

    def invalidate_spec_cache(self) -> None:
        """Forgets what was said when the tensor was split: `placements` are read from its value."""
        self._said = None

    def redistribute(
        self,
        device_mesh: DeviceMesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
        forward_dtype: torch.dtype | None = None,
        backward_dtype: torch.dtype | None = None,
    ) -> XLAShardedTensor:
        """The value, split by other placements, as a new tensor; gradients are split back.

        Args:
            device_mesh: A `DeviceMesh("xla", ...)`; that of the tensor unless given.
            placements: For each mesh dimension `Shard(dim)` or `Replicate()`.
            async_op: Accepted: what is sent is a part of the program anyway.
            forward_dtype: The dtype of the result; that of the tensor unless given.
            backward_dtype: The dtype in which gradients are sent; likewise.

        Raises:
            ShardingError, NotImplementedError: The placements do not fit, or are `Partial`.
            RuntimeError: There are none.
        """
        from torch_xla.distributed.spmd import dtensor

        if placements is None:
            raise RuntimeError("redistribute: expected placements, got none.")
        mesh = self.device_mesh if device_mesh is None else device_mesh
        return dtensor.redistribute(self, mesh, placements, forward_dtype, backward_dtype)

    def to_local(self, *, grad_placements: Sequence[Placement] | None = None) -> torch.Tensor:
        """The plain tensor: a process of SPMD holds all parts, so what is local is the whole.

        Args:
            grad_placements: How its gradient is split; as the compiler chooses unless given.
        """
        if grad_placements is None:
            return self.global_tensor
        from torch_xla.distributed.spmd import dtensor

        return dtensor.with_gradient(self, grad_placements)

    def full_tensor(self, *, grad_placements: Sequence[Placement] | None = None) -> torch.Tensor:
        """The value as a plain tensor of which each device holds the whole.

        Args:
            grad_placements: How its gradient is split; as the compiler chooses unless given.
        """
        from torch.distributed.tensor import Replicate

        everywhere = [Replicate()] * self.device_mesh.ndim
        whole = self.redistribute(self.device_mesh, everywhere)
        return whole.to_local(grad_placements=grad_placements)

    # torch.distributed.checkpoint asks these: to PyTorch's planners it is the plain tensor, which
    # the process holds the whole of.

    def __create_write_items__(self, fqn: str, object: Any) -> list[Any]:
        from torch.distributed.checkpoint.planner_helpers import _create_write_items

        return _create_write_items(fqn, self.global_tensor)

    def __create_chunk_list__(self) -> list[Any]:
        from torch.distributed.checkpoint.planner_helpers import _create_chunk_list

        return _create_chunk_list(self.global_tensor)

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        from torch.distributed.checkpoint.utils import find_tensor_shard

        return find_tensor_shard(self.global_tensor, index)

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        if self.sharding_spec == "{manual}":  # it has no one value
            return f"XLAShardedTensor(sizes={list(self.shape)}, dtype={self.dtype}, {{manual}})"
        return f"XLAShardedTensor({self.global_tensor!r}, {self.sharding_spec})"


@contextlib.contextmanager
def no_dispatch() -> Iterator[None]:
    """Calls within it pass `__torch_dispatch__` by."""
    guard = torch._C._DisableTorchDispatch()
    try:
        yield
    finally:
        del guard
