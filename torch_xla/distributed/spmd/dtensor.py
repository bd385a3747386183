"""What makes DTensors on a `DeviceMesh("xla", ...)` and splits them by placements.

They are `XLAShardedTensor`s that know their mesh, with a gradient and a history of their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Placement, Replicate
from torch.utils._pytree import tree_map_only

from torch_xla import _XLAC
from torch_xla._src.uncaptured import uncaptured
from torch_xla.distributed.spmd.constraints import split
from torch_xla.distributed.spmd.placements import (
    checked,
    constraint_along,
    convert_to_device_mesh,
    has_partial,
    name_of,
    op_sharding,
)
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor, placed, sharding_of
from torch_xla.distributed.spmd.xla_sharding import Mesh


def _enter_spmd_mode() -> None:
    import torch_xla.runtime as xr

    if not xr.is_spmd():
        xr.use_spmd()


_enter_spmd_mode._dynamo_marked_constant = True  # it is called while a graph is captured


def with_xla(func: Callable) -> Callable:
    """A function that runs in SPMD mode."""

    @functools.wraps(func)
    def in_spmd_mode(*args: Any, **kwargs: Any):
        _enter_spmd_mode()
        return func(*args, **kwargs)

    return in_spmd_mode


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


def _rebuilt(
    plain: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: tuple[Placement, ...] | None,
    requires_grad: bool,
    is_parameter: bool,
) -> XLAShardedTensor:
    """A copied or loaded DTensor."""
    made = on_mesh(plain, device_mesh)
    if placements is not None:
        made = marked(plain, device_mesh, placements)
    made.requires_grad_(requires_grad)
    return torch.nn.Parameter(made, requires_grad) if is_parameter else made


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


def redistribute(
    given: XLAShardedTensor,
    device_mesh: DeviceMesh | Mesh,
    placements: Sequence[Placement],
    forward_dtype: torch.dtype | None = None,
    backward_dtype: torch.dtype | None = None,
) -> XLAShardedTensor:
    """See `XLAShardedTensor.redistribute`."""
    if isinstance(device_mesh, Mesh):
        device_mesh = convert_to_device_mesh(device_mesh)
    present, back, t = given.sharding_spec, given.constraint, given.global_tensor
    said = checked(placements, t.dim(), device_mesh, "redistribute")
    sent = t if forward_dtype is None else t.to(forward_dtype)
    here = constraint_along(name_of(device_mesh), said, t.dim(), present)
    if backward_dtype is not None:
        sent = GradientIn.apply(sent, backward_dtype)
    return on_mesh(split(sent, here, back), device_mesh, None if here is None else said)


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


def with_gradient(given: XLAShardedTensor, placements: Sequence[Placement]) -> torch.Tensor:
    """The value, with a gradient that is split by placements."""
    mesh = given.device_mesh
    said = checked(placements, given.dim(), mesh, "to_local")
    back = constraint_along(name_of(mesh), said, given.dim(), given.sharding_spec)
    return split(given.global_tensor, None, back)


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
) -> XLAShardedTensor:
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
    t = local_tensor
    if isinstance(t, XLAShardedTensor) and t._mesh_name is None:  # a tensor that is marked
        t = t.global_tensor
    if isinstance(t, DTensor):
        raise RuntimeError(f"{who}: expected a plain tensor, got {type(t).__name__} on a mesh.")
    t = t if t.device.type == "xla" else t.to("xla")
    if placements is None:
        placements = [Replicate()] * device_mesh.ndim
    said = checked(placements, t.dim(), device_mesh, who, may_be_partial=True)
    of_gradient = None
    if grad_placements is not None:
        of_gradient = checked(grad_placements, t.dim(), device_mesh, who)
    made = _placed(t, device_mesh, said, of_gradient)
    for name, got, own in (("shape", shape, made.shape), ("stride", stride, made.stride())):
        if got is not None and tuple(got) != tuple(own):
            raise ValueError(
                f"{who}: expected the {name} {tuple(own)} of the whole, which one process holds on "
                f"an xla mesh, got {tuple(got)}."
            )
    return made


def _placed(
    t: torch.Tensor,
    mesh: DeviceMesh,
    said: tuple[Placement, ...],
    of_gradient: tuple[Placement, ...] | None,
) -> XLAShardedTensor:
    """See `from_local`; without placements of a gradient it is split as the value."""
    from torch_xla.distributed.spmd import partial

    who = "DTensor.from_local"
    if not torch.compiler.is_dynamo_compiling() and _XLAC._is_manual(t):
        return partial.of_parts(t, mesh, said, who)
    name, present, back = name_of(mesh), sharding_of(t), None
    if of_gradient is not None:
        back = constraint_along(name, of_gradient, t.dim(), present)
    if has_partial(said):
        return partial.from_whole(t if back is None else split(t, None, back), mesh, said, who)
    here = constraint_along(name, said, t.dim(), present)
    back = here if of_gradient is None else back
    return on_mesh(split(t, here, back), mesh, None if here is None else said)


def as_dtensors(values: Any, device_mesh: DeviceMesh) -> Any:
    """Nested values with their xla tensors as DTensors."""

    def convert(t: torch.Tensor) -> torch.Tensor:
        if t.device.type != "xla" or getattr(t, "_mesh_name", None) is not None:
            return t
        return on_mesh(t.global_tensor if isinstance(t, XLAShardedTensor) else t, device_mesh)

    return tree_map_only(torch.Tensor, convert, values)


@uncaptured("a tensor that is made is distributed outside of torch.compile")
@with_xla
def made_by(
    init_op: Callable[..., torch.Tensor],
    size: Sequence[int],
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None,
    **kwargs: Any,
) -> XLAShardedTensor:
    """What `torch.distributed.tensor.zeros` and the like do for a `DeviceMesh("xla", ...)`."""
    from torch_xla.distributed.spmd.api import xla_distribute_tensor

    fill = [kwargs.pop("fill_value")] if "fill_value" in kwargs else []
    whole = init_op(size, *fill, **{**kwargs, "device": "xla"})
    return xla_distribute_tensor(whole, device_mesh, placements)
