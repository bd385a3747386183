"""Functions that make DTensors on a `DeviceMesh("xla", ...)` and split them by placements.

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
from torch_xla import runtime as xr
from torch_xla._src.dynamo.uncaptured import constant
from torch_xla.distributed.spmd import partial
from torch_xla.distributed.spmd.constraints import split
from torch_xla.distributed.spmd.placements import (
    checked,
    constraint_along,
    has_partial,
    name_of,
)
from torch_xla.distributed.spmd.xla_sharded_tensor import (
    XLAShardedTensor,
    _rebuilt,  # noqa: F401  files of DTensors name it here
    on_mesh,
    sharding_of,
)


@constant  # it is called while a graph is captured
def _enter_spmd_mode() -> None:
    if not xr.is_spmd():
        xr.use_spmd()


def with_xla(func: Callable[..., Any]) -> Callable[..., Any]:
    """A function that runs in SPMD mode."""

    @functools.wraps(func)
    def in_spmd_mode(*args: Any, **kwargs: Any) -> Any:
        _enter_spmd_mode()
        return func(*args, **kwargs)

    return in_spmd_mode


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
    """`DTensor.from_local` for a `DeviceMesh("xla", ...)`.

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
