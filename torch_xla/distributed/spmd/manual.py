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
    """What each device has of a tensor that is split so, as a manual tensor.

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
    """What the operators take for a partition spec, and the numbers of parts."""
    if not xr.is_spmd():
        raise RuntimeError(
            f"{who}: expected SPMD mode, where all devices are one. Call "
            "torch_xla.runtime.use_spmd() first."
        )
    text = sharding_text(mesh_label, partition_spec, rank, who)
    mesh = labelled(mesh_label)
    return text, parts_of(mesh, partition_spec)
