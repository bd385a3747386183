"""A tensor that is split among devices: PyTorch's DTensor, with a view of its shards.

PyTorch's own DTensor is a part of a tensor in each of many processes. Here one process holds all
parts and the compiler splits the programs, so a DTensor is a tensor of `xla` by another class. It
computes by PyTorch's kernels for `xla`.
"""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Replicate
from torch.utils._pytree import tree_map_only

from torch_xla import _XLAC
from torch_xla._src.dynamo.uncaptured import skipped
from torch_xla._src.patches.after_import import after_import
from torch_xla.distributed.spmd.captured import call, first_of, with_own_methods
from torch_xla.distributed.spmd.constraints import constraint_of, split
from torch_xla.distributed.spmd.mesh import Mesh, PartitionSpec, ShardingType
from torch_xla.distributed.spmd.placements import (
    ByCompiler,
    checked,
    constraint_along,
    convert_to_device_mesh,
    mesh_of,
    name_of,
    op_sharding,
    placements_by_name,
    placements_of_spec,
    spec_along,
)
from torch_xla.distributed.spmd.shards import XLAShard

if TYPE_CHECKING:
    from torch.distributed.tensor._dtensor_spec import DTensorSpec


def _hand_over_gradient(alias: XLAShardedTensor) -> None:
    tensor = alias.global_tensor
    with torch._C.DisableTorchFunctionSubclass():
        gradient, alias.grad = alias.grad, None
    if gradient is not None:
        tensor.grad = gradient if tensor.grad is None else tensor.grad + gradient


@skipped
def sharding_of(t: torch.Tensor) -> str:
    """A tensor's sharding, as GSPMD writes it: "{devices=[4,1,2]0,1,2,3,4,5,6,7
    last_tile_dim_replicate}", "{replicated}", or "{manual}".

    It is "" where nothing says how the tensor is split, while a graph is captured, and for tensors
    that are not on `xla`.
    """
    if torch.compiler.is_dynamo_compiling() or t.device.type != "xla":
        return ""
    return _XLAC._get_xla_sharding_spec(unwrap_sharded_tensor(t))


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
        """The value is for the rest of a graph that is captured."""


def _absent(name: str) -> Any:
    """An attribute of the base that a class and its instances do not have."""

    class Absent:
        def __get__(self, instance: Any, owner: type) -> Any:
            raise AttributeError(f"'{owner.__name__}' has no attribute '{name}'")

    return Absent()


_ATTRIBUTES: Any = torch.Tensor  # descriptors of its attributes, which stubs say are values
_BASE, _GRAD = _ATTRIBUTES._base.__get__, _ATTRIBUTES.grad.__get__


@with_own_methods
class XLAShardedTensor(DTensor):
    """A tensor on `xla` together with how it is split; computes as the tensor itself does.

    `mark_sharding` makes one that stands for the tensor that is marked, its `global_tensor`, which
    has the history and the gradient. `distribute_tensor` and `DTensor.from_local` make one with a
    history and a gradient of its own, on a `DeviceMesh`. Functions of PyTorch give such tensors for
    it; results of the second kind are on the same mesh.

    torch._dynamo captures what it does as that of any class with a `__torch_function__`: of plain
    tensors. C++ that does not ask for `__torch_function__`, as that of `torch.autograd.Function`,
    finds an alias of the tensor.

    Args:
        elem: The tensor, which may be on the CPU, too: then nothing is split.
        mesh_shape: The sizes of the mesh; those of `elem` if that is such a tensor.
        partition_spec: What each dimension is split along; likewise.
        requires_grad: Whether it is a leaf that gets a gradient, detached from `elem`.
        mesh: The `Mesh` of the axes' names and the order of the devices.
    """

    _tensor: torch.Tensor | None = None  # that it stands for; None: itself, by another class
    _mesh_name: str | None = None  # of the DeviceMesh, as `placements.name_of` gives it
    # The placements by which it was just split, and how that is written.
    _said: tuple[tuple[Placement, ...], str] | None = None
    mesh: Mesh | None = None
    _mesh_shape: tuple[int, ...] | None = None
    _partition_spec: tuple[Any, ...] | None = None
    _cached_spec: DTensorSpec | None = None
    seen_gradient: torch.Tensor | None = None  # of which this was made

    # The tensor's sharding, as GSPMD writes it, and the constraint that says it, if any.
    sharding_spec: Any = _Asked(sharding_of)
    constraint: Any = _Asked(constraint_of)

    @staticmethod
    @skipped
    def __new__(
        cls,
        elem: torch.Tensor,
        mesh_shape: tuple[int, ...] | None = None,
        partition_spec: tuple[Any, ...] | None = None,
        *,
        requires_grad: bool = False,
        mesh: Mesh | None = None,
    ) -> Any:
        if isinstance(elem, XLAShardedTensor):
            mesh_shape = mesh_shape or elem.mesh_shape
            partition_spec = partition_spec or elem.partition_spec
            mesh, elem = mesh or elem.mesh, elem.global_tensor
        made = standing_for(elem.detach() if requires_grad else elem)
        made.mesh, made._mesh_shape, made._partition_spec = mesh, mesh_shape, partition_spec
        return made.requires_grad_() if requires_grad else made

    __init__ = torch.Tensor.__init__  # PyTorch's is not captured
    # It is a tensor of xla to PyTorch's dispatcher, which would else look for a part of one.
    __torch_dispatch__: Any = torch._C._disabled_torch_dispatch_impl
    __tensor_flatten__ = _absent("__tensor_flatten__")
    __tensor_unflatten__ = _absent("__tensor_unflatten__")

    @classmethod
    @skipped
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        given = first_of((args, kwargs), XLAShardedTensor)
        if not torch.compiler.is_dynamo_compiling() and _any_stands((args, kwargs)):
            return _of_tensors(given, func, args, kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            result = call(func, args, kwargs, XLAShardedTensor)
        if func == _BASE or result is kwargs.get("out", func):  # a base's alias has one again
            return result
        if func == _GRAD and _is_plain(result) and not torch.compiler.is_dynamo_compiling():
            return given._gradient(result)
        name = given._mesh_name

        def alike(t: torch.Tensor) -> torch.Tensor:
            return placed(t, name) if _is_plain(t) else t

        return tree_map_only(torch.Tensor, alike, result)

    def _want_what_the_tensor_wants(self) -> None:
        """The alias, too, has a gradient from now on, or none; it goes to the tensor."""
        with torch._C.DisableTorchFunctionSubclass():
            if self.grad_fn is not None:  # the tensor wanted one when the alias was made
                return
            assert self._tensor is not None
            self.requires_grad_(self._tensor.requires_grad)
            if self.requires_grad and not self._post_accumulate_grad_hooks:
                self.register_post_accumulate_grad_hook(_hand_over_gradient)

    def _gradient(self, plain: torch.Tensor) -> torch.Tensor:
        """The gradient as a DTensor: one object while somebody has it, by which torch._dynamo finds
        it when an optimizer is compiled.
        """
        known = self.__dict__.get("_gradient_made")
        made = None if known is None else known()
        if made is None or made.seen_gradient is not plain:
            made = placed(plain, self._mesh_name)
            made.seen_gradient = plain
            self._gradient_made = weakref.ref(made)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> XLAShardedTensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("copy.deepcopy: expected a DTensor that is a leaf of autograd.")
        if self._mesh_name is None:
            copied: torch.Tensor = self.like(copy.deepcopy(self.global_tensor, memo))
            if isinstance(self, torch.nn.Parameter):
                copied = torch.nn.Parameter(copied, self.requires_grad)
            return memo.setdefault(id(self), copied)
        _, (plain, *how) = self.__reduce_ex__(4)
        made = _rebuilt(copy.deepcopy(plain, memo), *how)
        if self.grad is not None:
            made.grad = copy.deepcopy(unwrap_sharded_tensor(self.grad), memo)
        return memo.setdefault(id(self), made)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """A stand-in is saved as its tensor; a DTensor with its placements."""
        if self._mesh_name is None:
            plain = self.global_tensor
            if isinstance(self, torch.nn.Parameter):
                plain = torch.nn.Parameter(plain.detach(), self.requires_grad)
            return plain.__reduce_ex__(protocol)
        plain, said = self.global_tensor.detach(), self.placements
        how = self.device_mesh, said if self._is_said(said) else None, self.requires_grad
        return _rebuilt, (plain, *how, isinstance(self, torch.nn.Parameter))

    @property
    def global_tensor(self) -> torch.Tensor:
        """The plain tensor, with its history: the one that was marked, or an alias."""
        if torch.compiler.is_dynamo_compiling():  # which captures no as_subclass(torch.Tensor)
            with torch._C.DisableTorchFunctionSubclass():
                return self.view_as(self)
        return self.as_subclass(torch.Tensor) if self._tensor is None else self._tensor

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
            RuntimeError: There is not one shard for each device, one has another shape than
                `XLAShard.data`, or each device has the whole tensor.
        """
        _XLAC._load_local_shards(
            self.global_tensor,
            [shard.data for shard in shards],
            [shard.shard_device for shard in shards],
        )
        self.invalidate_spec_cache()

    @property
    def sharding_type(self) -> Any:
        """The `ShardingType`; None where nothing says how the tensor is split."""
        kind = _XLAC._get_xla_sharding_type(self.global_tensor)
        return None if kind is None else ShardingType(kind)

    @property
    def mesh_shape(self) -> tuple[int, ...] | None:
        """The sizes of the mesh; None where nothing tells along which the tensor was split."""
        return self._mesh_shape if self._mesh_name is None else tuple(self.device_mesh.shape)

    @property
    def partition_spec(self) -> tuple[Any, ...] | None:
        """The axes along which each dimension is split; None where the compiler chooses."""
        if self._mesh_name is None:
            return self._partition_spec
        said = self.placements
        if not self._is_said(said):
            return None
        return spec_along(self.dim(), [[axis] for axis in range(len(said))], said)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh, or the sub-mesh, along which the tensor was split, as a `DeviceMesh`.

        Raises:
            ValueError: Nothing tells along which it was.
        """
        if self._mesh_name is not None:
            return mesh_of(self._mesh_name)
        return self._spec.mesh if self.mesh is None else convert_to_device_mesh(self.mesh)

    @property
    def placements(self) -> tuple[Placement, ...]:
        """For each dimension of `device_mesh` the `Shard` or `Replicate` that says what it splits;
        `ByCompiler` while the compiler has the choice.

        Raises:
            ValueError: Nothing tells along which mesh or how the tensor was split.
        """
        if self._mesh_name is None:
            try:
                return self._spec.placements
            except ValueError as e:
                raise ValueError(f"Placements not available: {e}") from e
        now = self.sharding_spec
        said, then = self._said or (None, None)
        # For a value that is computed, "" says that each device has the whole.
        if said is not None and (now == then or (now, then) == ("", "{replicated}")):
            return said
        return placements_by_name(now, self._mesh_name, self.dim())

    @property
    def _spec(self) -> DTensorSpec:  # type: ignore[override]
        """The spec that PyTorch's functions on DTensors ask for.

        Raises:
            ValueError: Nothing tells along which mesh or how the tensor was split.
        """
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

        if self._mesh_name is None and self._cached_spec is not None:
            return self._cached_spec
        sizes = self.mesh_shape
        if sizes is None:
            raise ValueError(
                "mesh_shape must be specified to create DTensorSpec. Nothing tells along which "
                "mesh the result of an operation was split: use wrap_as_sharded_tensor(t, "
                "mesh_shape, partition_spec), or mark_sharding."
            )
        spec = self.partition_spec
        if spec is None:
            raise ValueError(
                "partition_spec must be specified to create DTensorSpec. The compiler chooses how "
                "the result of an operation is split: use wrap_as_sharded_tensor(t, mesh_shape, "
                "partition_spec), mark_sharding or redistribute."
            )
        if self._mesh_name is not None:
            mesh, said = self.device_mesh, self.placements
        else:
            grid: Any = torch.arange(_XLAC._xla_num_global_devices()).reshape(sizes)
            grid = grid if self.mesh is None else self.mesh.get_logical_mesh()
            mesh, said = (
                DeviceMesh("xla", grid),
                placements_of_spec(spec, sizes, self.mesh),
            )
        made = DTensorSpec(mesh, said, TensorMeta(self.shape, self.stride(), self.dtype))
        if made != self._cached_spec:
            self._cached_spec = made
        return self._cached_spec

    def say(
        self,
        mesh_shape: tuple[int, ...] | None,
        partition_spec: tuple[Any, ...] | None,
        mesh: Mesh | None = None,
    ) -> None:
        """Takes what is said, of what the constructor takes, in place of what was."""
        self._mesh_shape = self.mesh_shape if mesh_shape is None else mesh_shape
        self._partition_spec = self.partition_spec if partition_spec is None else partition_spec
        self.mesh, self._mesh_name = mesh, None
        self.invalidate_spec_cache()

    def invalidate_spec_cache(self) -> None:
        """Forgets what was said when the tensor was split: `placements` are read from its value, or
        made of `mesh_shape` and `partition_spec` anew.
        """
        self._said = self._cached_spec = None

    @property
    def like(self) -> Callable[[torch.Tensor], XLAShardedTensor]:
        """A function that makes the DTensor of a tensor with this value; it holds none."""
        name = self._mesh_name
        if name is None:
            shape, spec, mesh = self._mesh_shape, self._partition_spec, self.mesh
            return lambda t: XLAShardedTensor(t, shape, spec, mesh=mesh)
        _, (_, _, said, *_) = self.__reduce_ex__(4)
        return lambda t: placed(t, name, said)

    @property
    def is_placed(self) -> bool:
        """True if `placements` are what was said, not what is found or left to the compiler."""
        if self._mesh_name is None:
            return self._partition_spec is not None
        return self._said is not None and self.placements == self._said[0]

    @staticmethod
    def _is_said(said: tuple[Placement, ...]) -> bool:
        return ByCompiler() not in said

    def redistribute(
        self,
        device_mesh: DeviceMesh | Mesh | None = None,
        placements: Sequence[Placement] | None = None,
        *,
        async_op: bool = False,
        forward_dtype: torch.dtype | None = None,
        backward_dtype: torch.dtype | None = None,
    ) -> XLAShardedTensor:
        """The value, split by other placements, as a new tensor; gradients are split back.

        Args:
            device_mesh: A `DeviceMesh("xla", ...)` or a `Mesh`; that of the tensor unless given.
            placements: For each mesh dimension `Shard(dim)` or `Replicate()`.
            async_op: Accepted: what is sent is a part of the program anyway.
            forward_dtype: The dtype of the result; that of the tensor unless given.
            backward_dtype: The dtype in which gradients are sent; likewise.

        Raises:
            ShardingError, IndexError, NotImplementedError: There is not one placement for each mesh
                dimension, the tensor lacks a dimension, or one is `Partial`.
            RuntimeError: There are none.
        """
        if placements is None:
            raise RuntimeError("redistribute: expected placements, got none.")
        mesh = self.device_mesh if device_mesh is None else device_mesh
        if isinstance(mesh, Mesh):
            mesh = convert_to_device_mesh(mesh)
        present, back, t = self.sharding_spec, self.constraint, self.global_tensor
        said = checked(placements, t.dim(), mesh, "redistribute")
        sent = t if forward_dtype is None else t.to(forward_dtype)
        here = constraint_along(name_of(mesh), said, t.dim(), present)
        if backward_dtype is not None:
            sent = GradientIn.apply(sent, backward_dtype)
        return on_mesh(split(sent, here, back), mesh, None if here is None else said)

    def to_local(self, *, grad_placements: Sequence[Placement] | None = None) -> torch.Tensor:
        """The plain tensor: a process of SPMD holds all parts, so what is local is the whole.

        Args:
            grad_placements: How its gradient is split; as the compiler chooses unless given.
        """
        if grad_placements is None:
            return self.global_tensor
        return with_gradient(self, grad_placements)

    def full_tensor(self, *, grad_placements: Sequence[Placement] | None = None) -> torch.Tensor:
        """The value as a plain tensor of which each device holds the whole.

        Args:
            grad_placements: How its gradient is split; as the compiler chooses unless given.
        """
        if self.mesh_shape is not None:
            mesh = self.device_mesh
        else:  # along whichever
            mesh = DeviceMesh("xla", list(range(_XLAC._xla_num_global_devices())))
        whole = self.redistribute(mesh, [Replicate()] * mesh.ndim)
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

    def __format__(self, format_spec: str) -> str:
        return format(self.global_tensor, format_spec)

    def __repr__(self, *args: Any, **kwargs: Any) -> str:  # type: ignore[override]
        if _XLAC._is_manual(self.global_tensor):  # it has no one value
            return f"XLAShardedTensor(sizes={list(self.shape)}, dtype={self.dtype}, {{manual}})"
        named = self._mesh_name is not None
        where = f", device_mesh={self.device_mesh}, placements={self.placements}" if named else ""
        return f"XLAShardedTensor({self.global_tensor!r}{where})"


def _is_plain(t: torch.Tensor) -> bool:
    return type(t) is torch.Tensor and t.device.type == "xla"


def placed(
    t: torch.Tensor,
    mesh_name: str | None,
    placements: tuple[Placement, ...] | None = None,
    cls: type = XLAShardedTensor,
) -> XLAShardedTensor:
    """A tensor of xla as a DTensor with its history.

    Args:
        t: The tensor.
        mesh_name: The name of the mesh; None where nothing tells it.
        placements: By which the tensor was just split; without them they are read from the value.
        cls: `XLAShardedTensor`, or a class of it.
    """
    made: Any = t.as_subclass(cls)
    made._mesh_name = mesh_name
    made._said = None if placements is None else (placements, sharding_of(t))
    if torch.compiler.is_dynamo_compiling():
        made.sharding_spec, made.constraint = "", None
    return made


def on_mesh(
    elem: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: tuple[Placement, ...] | None = None,
) -> XLAShardedTensor:
    """A tensor of xla as a DTensor on a mesh, with its history.

    Args:
        elem: The tensor.
        device_mesh: A `DeviceMesh("xla", ...)`.
        placements: By which it was just split; without them they are read from the value.
    """
    return placed(elem, name_of(device_mesh), placements)


def standing_for(t: torch.Tensor) -> XLAShardedTensor:
    """The stand-in of a plain tensor, with its history and gradient."""
    if torch.compiler.is_dynamo_compiling():
        return placed(t, None)
    made = t.as_subclass(XLAShardedTensor)
    made._tensor = t
    return made


def _any_stands(values: Any) -> bool:
    if isinstance(values, XLAShardedTensor):
        return values._tensor is not None
    if isinstance(values, dict):
        values = values.values()
    return isinstance(values, (list, tuple, type({}.values()))) and any(map(_any_stands, values))


def _of_tensors(
    given: XLAShardedTensor, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Does the work of `__torch_function__` where an argument stands for a tensor: the call is one
    of that tensor, and gives back what stands for it where it gives back the tensor.
    """
    known: dict[int, XLAShardedTensor] = {}

    def plain(values: Any) -> Any:
        if isinstance(values, XLAShardedTensor):
            tensor = values if values._tensor is None else values._tensor
            known[id(tensor)] = values
            return tensor
        if type(values) in (tuple, list):
            return type(values)([plain(value) for value in values])
        if type(values) is dict:
            return {name: plain(value) for name, value in values.items()}
        return values

    tensors, named = plain(args), plain(kwargs)
    with torch._C.DisableTorchFunctionSubclass():
        result, kind = func(*tensors, **named), given.device.type
    if func == _BASE or result is kwargs.get("out", func):
        return result
    if func == _GRAD and type(result) is torch.Tensor:
        return given._gradient(result)
    wants = func in (torch.Tensor.requires_grad_, _ATTRIBUTES.requires_grad.__set__)
    if wants and given._tensor is not None:
        given._want_what_the_tensor_wants()
    names = (t._mesh_name for t in known.values() if t._mesh_name is not None)
    name = next(names, None)

    def alike(t: torch.Tensor) -> torch.Tensor:
        if type(t) is not torch.Tensor or t.device.type != kind:
            return t
        if id(t) in known:
            return known[id(t)]
        # Not what stands for it: a torch.autograd.Function gives a history to what it returns.
        return given.like(t) if func == torch.Tensor.detach else placed(t, name)

    return tree_map_only(torch.Tensor, alike, result)


def marked(
    t: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    present: str | None = None,
) -> XLAShardedTensor:
    """A tensor of xla, split by placements as by `mark_sharding`, with its history; of a view a
    copy. `present` is how it is split so far, which stays along the axes that a sub-mesh lacks.
    """
    if present is None:
        present = _XLAC._get_xla_sharding_spec(t)
    sharding = op_sharding(t.dim(), device_mesh, placements, present)
    _XLAC._split_anew(t, sharding)
    if _XLAC._get_xla_sharding_spec(t) != str(sharding):
        t = t.clone()  # what is a part of other memory cannot be marked
        _XLAC._split_anew(t, sharding)
    return on_mesh(t, device_mesh, placements)


def _rebuilt(
    plain: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: tuple[Placement, ...] | None,
    requires_grad: bool,
    is_parameter: bool,
) -> Any:
    """A copied or loaded DTensor."""
    made = on_mesh(plain, device_mesh)
    if placements is not None:
        made = marked(plain, device_mesh, placements)
    made.requires_grad_(requires_grad)
    return torch.nn.Parameter(made, requires_grad) if is_parameter else made


_rebuilt.__module__ = "torch_xla.distributed.spmd.dtensor"  # as files of DTensors name it


class GradientIn(torch.autograd.Function):
    """A value whose gradient goes through another dtype."""

    @staticmethod
    def forward(ctx: Any, t: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        ctx.dtypes = dtype, t.dtype
        return t.view_as(t)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> Any:
        sent, own = ctx.dtypes
        return grad_output.to(sent).to(own), None


def with_gradient(given: XLAShardedTensor, placements: Sequence[Placement]) -> torch.Tensor:
    """The value, with a gradient that is split by placements."""
    mesh = given.device_mesh
    said = checked(placements, given.dim(), mesh, "to_local")
    back = constraint_along(name_of(mesh), said, given.dim(), given.sharding_spec)
    return split(given.global_tensor, None, back)


def wrap_as_sharded_tensor(
    t: torch.Tensor | XLAShardedTensor,
    mesh_shape: tuple[int, ...] | None = None,
    partition_spec: PartitionSpec | None = None,
) -> XLAShardedTensor:
    """The tensor as an `XLAShardedTensor`; one that is such a tensor is given back, with what is
    said of it here.
    """
    if not isinstance(t, XLAShardedTensor):
        return XLAShardedTensor(t, mesh_shape, partition_spec)
    if mesh_shape is not None or partition_spec is not None:
        t.say(mesh_shape, partition_spec)
    return t


def unwrap_sharded_tensor(t: torch.Tensor | XLAShardedTensor) -> torch.Tensor:
    """The plain tensor that an `XLAShardedTensor` wraps; other tensors as they are."""
    return t.global_tensor if isinstance(t, XLAShardedTensor) else t


def make_known(cls: type) -> None:
    """Has AOTAutograd watch the first call of a graph that takes tensors of a class: it knows these
    by their exact class.
    """

    def add() -> None:
        from torch._functorch._aot_autograd import runtime_wrappers

        if hasattr(runtime_wrappers, "HANDLED_TYPES"):
            runtime_wrappers.HANDLED_TYPES += (cls,)  # type: ignore[assignment]

    after_import("torch._functorch._aot_autograd.runtime_wrappers", add)


make_known(XLAShardedTensor)


@contextlib.contextmanager
def no_dispatch() -> Iterator[None]:
    """Calls within it pass `__torch_dispatch__` by."""
    guard = torch._C._DisableTorchDispatch()
    try:
        yield
    finally:
        del guard
