"""Collectives within manual code: the values of a group's devices, reduced or joined.

A gradient in manual code is that of each device's own value. What a sum of all gives to one device
comes from all that have the sum, so the gradient of a sum is the sum of the gradients, as of JAX's
`psum` in `shard_map`. `disable_manual_sharding` gives each copy of a part a share of the gradient:
together they are one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_xla import _XLAC
from torch_xla.distributed.spmd.mesh import MANUAL
from torch_xla.distributed.spmd.placements import axes_of, root_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# StableHLO's operations of PyTorch's reductions. An average is a sum that is divided.
REDUCTIONS = {
    "sum": "add",
    "avg": "add",
    "product": "multiply",
    "min": "minimum",
    "max": "maximum",
}
# Not every plugin reduces by these: values are gathered, and each device goes through them.
OF_BITS = {"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor}


def own(t: torch.Tensor) -> torch.Tensor:
    """A manual tensor; of one that is not, what each device has is the value that all share.

    Raises:
        TypeError: The tensor is on another device than `xla`.
    """
    if _XLAC._is_manual(t):
        return t
    if t.device.type not in ("xla", "meta"):
        raise TypeError(
            f"manual code: expected a tensor on xla, got one on {t.device}. Move it with "
            ".to('xla')."
        )
    return torch.ops.torch_xla.mark_manual(t, MANUAL.constraint(t.dim()))


# Gradients of the operators. A gradient may be one that all devices share, as the first one is.


def _of_each(grad: torch.Tensor, replicas: bool) -> torch.Tensor:
    return grad if replicas else own(grad)


def _share_of_extremes(ctx: Any) -> torch.Tensor:
    """1 where a device alone has the largest, a share where several have it, else 0."""
    (t,) = ctx.saved_tensors
    call = torch.ops.torch_xla.all_reduce
    found = call(t.detach(), ctx.reduction, 1.0, *ctx.group)
    has = (t.detach() == found).to(t.dtype)
    return has / call(has, "add", 1.0, *ctx.group)


def _expect_gradient(ctx: Any, who: str) -> None:
    if ctx.reduction not in ("add", "maximum", "minimum"):
        raise NotImplementedError(
            f"{who}: expected a sum, a maximum or a minimum, of which there is a gradient, got "
            f"'{ctx.reduction}'. Detach what is reduced."
        )


def _keep_reduction(
    ctx: Any, inputs: tuple[Any, ...], reduction: str, scale: float, group: tuple[Any, ...]
) -> None:
    ctx.reduction, ctx.scale, ctx.group = reduction, scale, group
    if reduction in ("maximum", "minimum"):
        ctx.save_for_backward(inputs[0])


def _keep_all_reduce(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, reduction, scale, *group = inputs
    _keep_reduction(ctx, inputs, reduction, scale, tuple(group))


def _all_reduce_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    _expect_gradient(ctx, "all_reduce")
    call = torch.ops.torch_xla.all_reduce
    back = call(_of_each(grad, ctx.group[-1]), "add", ctx.scale, *ctx.group)
    if ctx.reduction != "add":
        back = back * _share_of_extremes(ctx)
    return back, None, None, None, None, None


def _keep_reduce_scatter(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, reduction, scale, ctx.dim, *group = inputs
    _keep_reduction(ctx, inputs, reduction, scale, tuple(group))


def _reduce_scatter_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    _expect_gradient(ctx, "reduce_scatter")
    call = torch.ops.torch_xla.all_gather
    back = call(_of_each(grad, ctx.group[-1]), ctx.dim, *ctx.group)
    if ctx.scale != 1:
        back = back * ctx.scale
    if ctx.reduction != "add":
        back = back * _share_of_extremes(ctx)
    return back, None, None, None, None, None, None


def _keep_all_gather(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, ctx.dim, *ctx.group = inputs


def _all_gather_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    call = torch.ops.torch_xla.reduce_scatter
    back = call(_of_each(grad, ctx.group[-1]), "add", 1.0, ctx.dim, *ctx.group)
    return back, None, None, None, None


def _keep_all_to_all(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, ctx.split, ctx.join, *ctx.group = inputs


def _all_to_all_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    call = torch.ops.torch_xla.all_to_all
    back = call(_of_each(grad, ctx.group[-1]), ctx.join, ctx.split, *ctx.group)
    return back, None, None, None, None, None


def _keep_permute(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, ctx.members, ctx.replicas = inputs


def _permute_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    pairs = zip(ctx.members[1::2], ctx.members[::2], strict=True)
    back = [member for pair in pairs for member in pair]
    call = torch.ops.torch_xla.collective_permute
    return call(_of_each(grad, ctx.replicas), back, ctx.replicas), None, None


def _broadcast_backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    raise NotImplementedError(
        "collective_broadcast: expected a tensor without a gradient, got one that has. Detach what "
        "is sent, or use collective_permute."
    )


def _mark_backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return grad, None


_library = torch.library.Library("torch_xla", "FRAGMENT")
for _name, _backward, _keep in (
    ("all_reduce", _all_reduce_backward, _keep_all_reduce),
    ("reduce_scatter", _reduce_scatter_backward, _keep_reduce_scatter),
    ("all_gather", _all_gather_backward, _keep_all_gather),
    ("all_to_all", _all_to_all_backward, _keep_all_to_all),
    ("collective_permute", _permute_backward, _keep_permute),
    ("collective_broadcast", _broadcast_backward, None),
    ("mark_manual", _mark_backward, None),
):
    torch.library.register_autograd(
        f"torch_xla::{_name}", _backward, setup_context=_keep, lib=_library
    )


# Along the dimensions of a DeviceMesh, in PyTorch's words.


def groups_along(device_mesh: DeviceMesh, dims: Sequence[int]) -> list[list[int]]:
    """The devices that differ along some dimensions of a mesh alone, in the order of the parts that
    `Shard` along these dimensions gives them.
    """
    grid = root_of(device_mesh).mesh
    axes = axes_of(device_mesh)
    along = sorted(axis for dim in dims for axis in axes[dim])
    rest = [axis for axis in range(grid.ndim) if axis not in along]
    size = math.prod(grid.shape[axis] for axis in along)
    return grid.permute(*rest, *along).reshape(-1, size).tolist()


def _group(device_mesh: DeviceMesh, dims: Sequence[int]) -> tuple[list[int], int]:
    groups = groups_along(device_mesh, dims)
    return [device for group in groups for device in group], len(groups[0])


def _operation(reduction: str, who: str, others: Sequence[str] = ()) -> str:
    if reduction not in REDUCTIONS:
        raise ValueError(
            f"{who}: expected one of {[*REDUCTIONS, *others]} as a reduction, got {reduction!r}."
        )
    return REDUCTIONS[reduction]


def averaged(total: torch.Tensor, count: int) -> torch.Tensor:
    """A sum that is divided, of integers by rounding to zero."""
    if total.is_floating_point() or total.is_complex():
        return total / count
    return torch.div(total, count, rounding_mode="trunc")


def all_reduce(
    t: torch.Tensor, reduction: str, device_mesh: DeviceMesh, dims: Sequence[int]
) -> torch.Tensor:
    """The values of the devices along some dimensions of a mesh, reduced, on each of them.

    Args:
        t: Manual, or the same on all devices.
        reduction: One of `REDUCTIONS` or `OF_BITS`.
        device_mesh: A `DeviceMesh("xla", ...)` or a sub-mesh.
        dims: Dimensions of the mesh.

    Returns:
        A manual tensor. Of sums, averages, maxima and minima there is a gradient.

    Raises:
        ValueError, TypeError: An unknown reduction, or one that the dtype does not have; a tensor
            on another device than `xla`.
    """
    if reduction in OF_BITS:
        return _all_reduce_bits(t, reduction, device_mesh, dims)
    operation = _operation(reduction, "all_reduce", [*OF_BITS])
    members, size = _group(device_mesh, dims)
    made = torch.ops.torch_xla.all_reduce(own(t), operation, 1.0, members, size)
    return averaged(made, size) if reduction == "avg" else made


def _all_reduce_bits(
    t: torch.Tensor, reduction: str, device_mesh: DeviceMesh, dims: Sequence[int]
) -> torch.Tensor:
    if t.is_floating_point() or t.is_complex():
        raise TypeError(
            f"all_reduce: expected integers or booleans for {reduction!r}, got {t.dtype}."
        )
    gathered = all_gather(t[None], 0, device_mesh, dims)
    return functools.reduce(OF_BITS[reduction], gathered.unbind(0))


def reduce_scatter(
    t: torch.Tensor, reduction: str, dim: int, device_mesh: DeviceMesh, dims: Sequence[int]
) -> torch.Tensor:
    """The same, of which each device gets a part along the dimension `dim` of the tensor.

    Raises:
        ValueError, TypeError: As `all_reduce`, or the dimension does not divide.
    """
    operation = _operation(reduction, "reduce_scatter")
    members, size = _group(device_mesh, dims)
    if not -t.dim() <= dim < t.dim() or t.shape[dim] % size:
        raise ValueError(
            f"reduce_scatter: expected a dimension that {size} devices divide, got {dim} of "
            f"{list(t.shape)}."
        )
    call = torch.ops.torch_xla.reduce_scatter
    made = call(own(t), operation, 1.0, dim % t.dim(), members, size)
    return averaged(made, size) if reduction == "avg" else made


def all_gather(
    t: torch.Tensor, dim: int, device_mesh: DeviceMesh, dims: Sequence[int]
) -> torch.Tensor:
    """The devices' values, one after the other along the dimension `dim`, on each of them.

    Raises:
        ValueError: A dimension that the tensor lacks.
    """
    if not -t.dim() <= dim < t.dim():
        raise ValueError(f"all_gather: expected a dimension of {list(t.shape)}, got {dim}.")
    members, size = _group(device_mesh, dims)
    return torch.ops.torch_xla.all_gather(own(t), dim % t.dim(), members, size)
