"""DTensors of a `DeviceMesh("xla", ...)`: tensors of the whole that know their mesh.

PyTorch's own DTensor is a part of a tensor in each of many processes. Here one process holds all
parts and the compiler splits the programs, so a DTensor is a tensor of `xla` by another class, with
a gradient and a history of its own. It computes by PyTorch's kernels for `xla`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Partial, Placement, Replicate
from torch.utils._pytree import tree_leaves, tree_map_only

from torch_xla import _XLAC
from torch_xla.distributed.spmd.constraints import constraint_of, split
from torch_xla.distributed.spmd.placements import (
    ByCompiler,
    checked,
    op_sharding,
    placements_of,
    root_of,
)
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor


def with_xla(func: Callable) -> Callable:
    """A function that runs in SPMD mode."""

    @functools.wraps(func)
    def in_spmd_mode(*args: Any, **kwargs: Any):
        import torch_xla.runtime as xr

        if not xr.is_spmd():
            xr.use_spmd()
        return func(*args, **kwargs)

    return in_spmd_mode


class XLADTensor(XLAShardedTensor, DTensor):
    """A DTensor on `xla`. Functions of PyTorch give such tensors for it, on the same mesh.

    `distribute_tensor` and `DTensor.from_local` make it.

    Args:
        elem: The tensor; its history is kept.
        device_mesh: A `DeviceMesh("xla", ...)`.
        placements: By which it was just split; without them they are read from the value.
    """

    @staticmethod
    def __new__(
        cls,
        elem: torch.Tensor,
        device_mesh: DeviceMesh,
        placements: tuple[Placement, ...] | None = None,
    ):
        made = elem.as_subclass(cls)
        made.__dict__["_device_mesh"] = device_mesh
        if placements is not None:
            made.__dict__["_said"] = (placements, made.sharding_spec)
        return made

    # It is a tensor of xla to PyTorch's dispatcher, which would else look for a part of one.
    __torch_dispatch__ = torch._C._disabled_torch_dispatch_impl

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
        given = next(t for t in tree_leaves((args, kwargs)) if isinstance(t, cls))
        return tree_map_only(torch.Tensor, given._alike, result)

    def _alike(self, t: torch.Tensor) -> torch.Tensor:
        if type(t) is torch.Tensor and t.device.type == "xla":
            return XLADTensor(t, self.device_mesh)
        return t

    def __deepcopy__(self, memo: dict[int, Any]) -> XLADTensor:
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError("copy.deepcopy: expected a DTensor that is a leaf of autograd.")
        _, (plain, *how) = self.__reduce_ex__(4)
        made = _rebuilt(copy.deepcopy(plain, memo), *how)
        if self.grad is not None:
            made.grad = copy.deepcopy(self.grad.global_tensor, memo)
        return memo.setdefault(id(self), made)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        plain, said = self.global_tensor.detach(), self.placements
        how = self.device_mesh, None if ByCompiler() in said else said, self.requires_grad
        return _rebuilt, (plain, *how, isinstance(self, torch.nn.Parameter))

    @property
    def global_tensor(self) -> torch.Tensor:
        """The tensor without this class, with its history."""
        return self.as_subclass(torch.Tensor)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh, or the sub-mesh, along which the tensor was split."""
        return self.__dict__["_device_mesh"]

    @property
    def placements(self) -> tuple[Placement, ...]:
        """As `XLAShardedTensor.placements`. What was said is given back while it holds: for
        dimensions that do not divide, too, of which each device has the whole.
        """
        now = self.sharding_spec
        said, then = self.__dict__.get("_said", (None, None))
        # Of a value that is computed, "" says that each device has the whole.
        if said is not None and (now == then or (now, then) == ("", "{replicated}")):
            return said
        return placements_of(now, self.device_mesh, self.dim())

    @property
    def like(self) -> Callable[[torch.Tensor], XLADTensor]:
        """What makes of a tensor with this value the DTensor, which it does not hold."""
        _, (_, mesh, said, *_) = self.__reduce_ex__(4)
        return lambda t: XLADTensor(t, mesh, said)

    @property
    def is_placed(self) -> bool:
        """Whether `placements` are what was said, not what is found or left to the compiler."""
        return self.placements == self.__dict__.get("_said", (None,))[0]

    @property
    def mesh_shape(self) -> tuple[int, ...]:
        return tuple(self.device_mesh.shape)

    @property
    def _spec(self) -> Any:
        """PyTorch's record of a DTensor of many processes, for which torch._dynamo asks.

        Raises:
            AttributeError: Always, so that `hasattr` tells.
        """
        raise AttributeError(
            "torch.compile: expected plain tensors, got a DTensor on xla, without a "
            "DTensorSpec. Pass tensor.to_local(), the whole, which is split alike; results are "
            "split as the compiler chooses."
        )

    def __repr__(self, *args: Any, **kwargs: Any) -> str:
        return (
            f"XLADTensor({self.global_tensor!r}, device_mesh={self.device_mesh}, "
            f"placements={self.placements})"
        )


def _rebuilt(
    plain: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: tuple[Placement, ...] | None,
    requires_grad: bool,
    is_parameter: bool,
) -> XLADTensor:
    """A copied or loaded DTensor."""
    made = XLADTensor(plain, device_mesh)
    if placements is not None:
        made = marked(plain, device_mesh, placements)
    made.requires_grad_(requires_grad)
    return torch.nn.Parameter(made, requires_grad) if is_parameter else made


def marked(
    t: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: tuple[Placement, ...],
    present: str | None = None,
) -> XLADTensor:
    """A tensor of xla, split by placements as by `mark_sharding`, with its history; of a view a
    copy. `present` is how it is split so far, which stays along the axes that a sub-mesh lacks.
    """
    if present is None:
        present = _XLAC._get_xla_sharding_spec(t)
    sharding = op_sharding(t.dim(), device_mesh, placements, present)
    _XLAC._xla_mark_sharding(t, sharding)
    if _XLAC._get_xla_sharding_spec(t) != str(sharding):
        t = t.clone()  # what is a part of other memory cannot be marked
        _XLAC._xla_mark_sharding(t, sharding)
    return XLADTensor(t, device_mesh, placements)


def _constraint(t: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> str | None:
    """None where a sub-mesh says nothing about the other axes, and the value is not split yet: then
    the compiler chooses, since a constraint is one along all axes.
    """
    present = _XLAC._get_xla_sharding_spec(t)
    if present == "" and root_of(mesh) is not mesh:
        return None
    return op_sharding(t.dim(), mesh, placements, present).constraint(t.dim())


def redistribute(
    t: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: Sequence[Placement],
    forward_dtype: torch.dtype | None = None,
    backward_dtype: torch.dtype | None = None,
) -> XLADTensor:
    """See `XLAShardedTensor.redistribute`."""
    said = checked(placements, t.dim(), device_mesh, "redistribute")
    back = constraint_of(t)
    sent = t if forward_dtype is None else t.to(forward_dtype)
    here = _constraint(sent, device_mesh, said)
    if backward_dtype is not None:
        sent = GradientIn.apply(sent, backward_dtype)
    return XLADTensor(split(sent, here, back), device_mesh, None if here is None else said)


class GradientIn(torch.autograd.Function):
    """A value whose gradient goes through another dtype."""

    @staticmethod
    def forward(ctx, t: torch.Tensor, dtype: torch.dtype):
        ctx.dtypes = dtype, t.dtype
        return t.view_as(t)

    @staticmethod
    def backward(ctx, grad_output: torch.Tensor):
        sent, own = ctx.dtypes
        return grad_output.to(sent).to(own), None


def with_gradient(
    t: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement]
) -> torch.Tensor:
    """The value, with a gradient that is split by placements."""
    said = checked(placements, t.dim(), device_mesh, "to_local")
    return split(t, None, _constraint(t, device_mesh, said))


@with_xla
def from_local(
    local_tensor: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None = None,
    *,
    run_check: bool = False,
    shape: torch.Size | None = None,
    stride: tuple[int, ...] | None = None,
    grad_placements: Sequence[Placement] | None = None,
) -> XLADTensor:
    """What `DTensor.from_local` does for a `DeviceMesh("xla", ...)`.

    Args:
        local_tensor: The whole value, since this process has all the devices: `Shard` splits it.
            Devices along `Partial` hold the same then, so a sum is the value times their number.
            Or a manual tensor, of what each device has.
        device_mesh: The mesh.
        placements: For each mesh dimension `Shard(dim)`, `Replicate()` or `Partial()`;
            `Replicate()` unless given. On a sub-mesh a value that is not split yet is split as the
            compiler chooses.
        run_check: Accepted: there are no other processes to compare with.
        shape, stride: Those of the result, if given.
        grad_placements: How the gradient of a whole value is split; as the value unless given.

    Raises:
        RuntimeError: `local_tensor` is a DTensor.
        ShardingError, NotImplementedError: The placements do not fit.
        ValueError: Another `shape` or `stride`, or several reductions.
    """
    who = "DTensor.from_local"
    if isinstance(local_tensor, DTensor):
        raise RuntimeError(f"{who}: expected a plain tensor, got {type(local_tensor).__name__}.")
    t = local_tensor if local_tensor.device.type == "xla" else local_tensor.to("xla")
    if placements is None:
        placements = [Replicate()] * device_mesh.ndim
    said = checked(placements, t.dim(), device_mesh, who, may_be_partial=True)
    back = None
    if grad_placements is not None:
        grad_said = checked(grad_placements, t.dim(), device_mesh, who)
        back = None if _XLAC._is_manual(t) else _constraint(t, device_mesh, grad_said)
    made = _placed(t, device_mesh, said, back)
    for name, got, own in (("shape", shape, made.shape), ("stride", stride, made.stride())):
        if got is not None and tuple(got) != tuple(own):
            raise ValueError(
                f"{who}: expected the {name} {tuple(own)} of the whole, which one process holds on "
                f"an xla mesh, got {tuple(got)}."
            )
    return made


def _placed(
    t: torch.Tensor, mesh: DeviceMesh, said: tuple[Placement, ...], back: str | None
) -> XLADTensor:
    """See `from_local`; `back` is the constraint of a gradient that is not split as the value."""
    from torch_xla.distributed.spmd import partial

    who = "DTensor.from_local"
    if _XLAC._is_manual(t):
        plain = t.global_tensor if isinstance(t, XLAShardedTensor) else t
        return partial.of_parts(plain, mesh, said, who)
    if any(isinstance(p, Partial) for p in said):
        return partial.from_whole(t if back is None else split(t, None, back), mesh, said, who)
    here = _constraint(t, mesh, said)
    return XLADTensor(split(t, here, back or here), mesh, None if here is None else said)


def as_dtensors(values: Any, device_mesh: DeviceMesh) -> Any:
    """Nested values with their xla tensors as DTensors."""

    def convert(t: torch.Tensor) -> torch.Tensor:
        if t.device.type != "xla" or isinstance(t, DTensor):
            return t
        return XLADTensor(t.global_tensor if isinstance(t, XLAShardedTensor) else t, device_mesh)

    return tree_map_only(torch.Tensor, convert, values)


@with_xla
def made_by(
    init_op: Callable[..., torch.Tensor],
    size: Sequence[int],
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None,
    **kwargs: Any,
) -> XLADTensor:
    """What `torch.distributed.tensor.zeros` and the like do for a `DeviceMesh("xla", ...)`."""
    from torch_xla.distributed.spmd.api import xla_distribute_tensor

    fill = [kwargs.pop("fill_value")] if "fill_value" in kwargs else []
    whole = init_op(size, *fill, **{**kwargs, "device": "xla"})
    return xla_distribute_tensor(whole, device_mesh, placements)
