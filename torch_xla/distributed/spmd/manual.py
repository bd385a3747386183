"""Manual sharding: between `enable_manual_sharding` and `disable_manual_sharding` each device
computes on its own part of a tensor, by itself.

A manual tensor has the sizes of one part. What is computed from one is manual; tensors that are not
take part with the value that all devices share.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_xla import _XLAC
from torch_xla import runtime as xr
from torch_xla._src.dynamo.uncaptured import constant
from torch_xla.distributed.spmd.mesh import (
    MANUAL,
    Mesh,
    PartitionSpec,
    ShardingError,
    get_global_mesh,
    labelled,
    parts_of,
    sharding_text,
)
from torch_xla.distributed.spmd.xla_sharded_tensor import (
    XLAShardedTensor,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
)


def enable_manual_sharding(
    t: torch.Tensor | XLAShardedTensor,
    partition_spec: PartitionSpec,
    *,
    mesh: Mesh | None = None,
) -> XLAShardedTensor:
    """Each device's part of a tensor that is split so, as a manual tensor.

    What follows from it is computed by each device on its own part, and nothing is sent between
    them. Its gradient is that of all devices: of those that have the same part, the sum.

    Args:
        t: On `xla`, of the full shape. It stays as it is.
        partition_spec: As of `mark_sharding`. Axes that it leaves out hold copies.
        mesh: The devices; the mesh of `set_global_mesh` unless given.

    Returns:
        A tensor of the shape of one part, as an `XLAShardedTensor`; within `torch.compile`, plain.

    Raises:
        ShardingError: The spec does not fit the tensor or the mesh, it does not divide a size, the
            tensor is manual, or there is no mesh.
        RuntimeError: The process is not in SPMD mode.
        TypeError: The tensor is on another device.

    Example:
        >>> part = xs.enable_manual_sharding(q, ("data", None, None, None), mesh=mesh)
        >>> part = my_attention(part)  # of the heads of one device
        >>> out = xs.disable_manual_sharding(part, ("data", None, None, None), q.shape, mesh=mesh)
    """
    who = "enable_manual_sharding"
    plain = unwrap_sharded_tensor(t)
    compiling = torch.compiler.is_compiling()
    if not compiling:
        _check_device(plain, who)
        if _XLAC._is_manual(plain):
            raise ShardingError(
                f"{who}: expected a tensor of the full shape, got a manual one of "
                f"{list(plain.shape)}."
            )
    mesh = _mesh_of(mesh, who)
    text, parts = _split(mesh._label, partition_spec, plain.dim(), who)
    for size, count in zip(plain.shape, parts, strict=True):
        if size % count != 0:
            raise ShardingError(
                f"{who}: expected sizes that the numbers of parts {list(parts)} divide, got "
                f"{list(plain.shape)}. Pad the tensor."
            )
    part = torch.ops.torch_xla.full_to_shard(plain, text)
    return part if compiling else wrap_as_sharded_tensor(part)


def disable_manual_sharding(
    t: torch.Tensor | XLAShardedTensor,
    partition_spec: PartitionSpec,
    full_shape: Sequence[int],
    *,
    mesh: Mesh | None = None,
) -> XLAShardedTensor:
    """The tensor whose parts a manual tensor has, split so.

    Devices that have the same part must have computed the same: which of them is taken is not said.
    Each gets an equal share of the part's gradient.

    Args:
        t: On `xla`, of the shape of one part. One that is not manual is a part that all share.
        partition_spec: As of `mark_sharding`.
        full_shape: The sizes of the result.
        mesh: The devices; the mesh of `set_global_mesh` unless given.

    Returns:
        A tensor of `full_shape`, as an `XLAShardedTensor`; within `torch.compile`, plain.

    Raises:
        ShardingError: The spec does not fit the tensor or the mesh, `full_shape` is not the parts
            together, or there is no mesh.
        RuntimeError: The process is not in SPMD mode.
        TypeError: The tensor is on another device.
    """
    who = "disable_manual_sharding"
    plain = unwrap_sharded_tensor(t)
    compiling = torch.compiler.is_compiling()
    if not compiling:
        _check_device(plain, who)
    mesh = _mesh_of(mesh, who)
    text, parts = _split(mesh._label, partition_spec, plain.dim(), who)
    together = [size * count for size, count in zip(plain.shape, parts, strict=True)]
    if list(full_shape) != together:
        raise ShardingError(
            f"{who}: expected the full shape {together} of {list(parts)} parts of "
            f"{list(plain.shape)}, got {list(full_shape)}."
        )
    whole = torch.ops.torch_xla.shard_to_full(plain, text)
    if compiling:
        return whole
    return XLAShardedTensor(whole, mesh.mesh_shape, partition_spec, mesh=mesh)


def _mark_manual_sharding(t: torch.Tensor | XLAShardedTensor) -> XLAShardedTensor:
    """Says that a tensor is manual: each device goes on with all of its present value by itself.

    Returns:
        The tensor, as an `XLAShardedTensor`.

    Raises:
        ValueError: `mark_sharding` has split it.
        RuntimeError: The tensor holds data, or the process is not in SPMD mode.
    """
    plain = unwrap_sharded_tensor(t)
    _XLAC._mark_manual_sharding(plain, MANUAL)
    return wrap_as_sharded_tensor(plain)


def _check_device(t: torch.Tensor, who: str) -> None:
    if t.device.type not in ("xla", "meta"):
        raise TypeError(
            f"{who}: expected a tensor on xla, got one on {t.device}. Move it with .to('xla')."
        )


def _mesh_of(mesh: Mesh | None, who: str) -> Mesh:
    mesh = get_global_mesh() if mesh is None else mesh
    if mesh is None:
        raise ShardingError(
            f"{who}: expected a mesh, got none. Pass mesh=, or call set_global_mesh() first."
        )
    return mesh


@constant
def _split(
    mesh_label: str, partition_spec: PartitionSpec, rank: int, who: str
) -> tuple[str, tuple[int, ...]]:
    """The operators' text for a partition spec, and the numbers of parts."""
    if not xr.is_spmd():
        raise RuntimeError(
            f"{who}: expected SPMD mode, where all devices are one. Call "
            "torch_xla.runtime.use_spmd() first."
        )
    text = sharding_text(mesh_label, partition_spec, rank, who)
    mesh = labelled(mesh_label)
    return text, parts_of(mesh, partition_spec)


_REDUCTIONS = {
    "sum": "add",
    "mul": "multiply",
    "and": "and",
    "or": "or",
    "min": "minimum",
    "max": "maximum",
}


def all_reduce(
    reduce_type: str,
    input: torch.Tensor,
    scale: float = 1.0,
    groups: Sequence[Sequence[int]] = (),
) -> torch.Tensor:
    """The values that the devices of a group have of a manual tensor, reduced, on all of them.

    Args:
        reduce_type: "sum", "mul", "and", "or", "min" or "max".
        input: Of `enable_manual_sharding`.
        scale: A factor of the result.
        groups: Each device once; none: one group of all.

    Returns:
        A manual tensor. Of "sum", "min" and "max" there is a gradient.

    Raises:
        ValueError: Another reduction, groups of several sizes, or a tensor that is not manual.
        TypeError: "and" or "or" of floating-point numbers.

    Example:
        >>> part = xs.enable_manual_sharding(x, ("data", None), mesh=mesh)
        >>> total = xs.all_reduce("sum", part.sum())
    """
    reduction, members, size = _groups("all_reduce", reduce_type, input, groups)
    call = torch.ops.torch_xla.all_reduce
    return call(input, reduction, scale, members, size)


def reduce_scatter(
    reduce_type: str,
    input: torch.Tensor,
    scale: float = 1.0,
    dim: int = 0,
    groups: Sequence[Sequence[int]] = (),
) -> torch.Tensor:
    """`all_reduce`, of which each device of a group gets a part along the dimension `dim`.

    Raises:
        ValueError, TypeError: As `all_reduce`, or the devices of a group do not divide the size.
        IndexError: The tensor lacks the dimension.
    """
    reduction, members, size = _groups("reduce_scatter", reduce_type, input, groups)
    if not -input.dim() <= dim < input.dim():
        raise IndexError(
            f"reduce_scatter: expected a dimension of {tuple(input.shape)} to scatter, got {dim}."
        )
    count = size or _XLAC._xla_num_global_devices()
    if input.shape[dim] % count:
        raise ValueError(
            f"reduce_scatter: expected a dimension that the {count} devices of a group divide, got "
            f"{dim} of {tuple(input.shape)}."
        )
    call = torch.ops.torch_xla.reduce_scatter
    return call(input, reduction, scale, dim % input.dim(), members, count)


def _reduce_scatter(
    reduce_type: str,
    input: torch.Tensor,
    scale: float,
    scatter_dim: int,
    shard_count: int,
    groups: Sequence[Sequence[int]] = (),
) -> torch.Tensor:
    """`_XLAC._xla_spmd_reduce_scatter`, which also takes the number of parts."""
    count = len(groups[0]) if groups else _XLAC._xla_num_global_devices()
    if shard_count != count:
        raise ValueError(
            f"reduce_scatter: expected {count} parts, as many as a group has devices, got "
            f"{shard_count}."
        )
    return reduce_scatter(reduce_type, input, scale, scatter_dim, groups)


def _groups(
    who: str, reduce_type: str, input: torch.Tensor, groups: Sequence[Sequence[int]]
) -> tuple[str, list[int], int]:
    """StableHLO's name of a reduction, the devices of all groups, and how many a group has."""
    if reduce_type not in _REDUCTIONS:
        raise ValueError(f"{who}: expected one of {list(_REDUCTIONS)}, got {reduce_type!r}.")
    if reduce_type in ("and", "or") and input.is_floating_point():
        raise TypeError(f"{who}: expected integers or booleans for {reduce_type!r}.")
    if _XLAC._xla_num_global_devices() > 1 and not _XLAC._is_manual(input):
        raise ValueError(
            f"{who}: expected a manual tensor, of which each device has its own, got one of all "
            "devices. Use enable_manual_sharding."
        )
    sizes = {len(group) for group in groups}
    if len(sizes) > 1 or 0 in sizes:
        raise ValueError(f"{who}: expected groups of one size, got {[list(g) for g in groups]}.")
    members = [int(device) for group in groups for device in group]
    return _REDUCTIONS[reduce_type], members, sizes.pop() if sizes else 0
