"""What PyTorch's `distribute_tensor` and `distribute_module` call for a `DeviceMesh("xla", ...)`.

Tensors are split by `mark_sharding`: what comes out is one tensor of the whole, which programs
compute with in parts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard

from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor
from torch_xla.distributed.spmd.xla_sharding import (
    Mesh,
    ShardingError,
    mark_sharding,
    unwrap_sharded_tensor,
)


def with_xla(func: Callable) -> Callable:
    """A function that runs in SPMD mode."""

    @functools.wraps(func)
    def in_spmd_mode(*args: Any, **kwargs: Any):
        import torch_xla.runtime as xr

        if not xr.is_spmd():
            xr.use_spmd()
        return func(*args, **kwargs)

    return in_spmd_mode


def convert_to_xla_mesh(dt_mesh: DeviceMesh) -> Mesh:
    """The mesh of a `DeviceMesh("xla", ...)`.

    Raises:
        ValueError: It is one of other devices.
    """
    if dt_mesh.device_type != "xla":
        raise ValueError(
            f"convert_to_xla_mesh: expected a DeviceMesh of 'xla', got one of "
            f"'{dt_mesh.device_type}'."
        )
    return Mesh(dt_mesh.mesh.flatten().tolist(), tuple(dt_mesh.mesh.size()), dt_mesh.mesh_dim_names)


def convert_to_xla_partition_spec(
    tensor: torch.Tensor, placements: Sequence[Placement]
) -> tuple[Any, ...]:
    """The partition spec of placements, which say for each mesh dimension what it splits.

    Raises:
        ShardingError: A dimension that the tensor lacks.
        NotImplementedError: Neither `Shard` nor `Replicate`: a value that is split is never a part
            of a sum here, the compiler adds what has to be.
    """
    axes: list[list[int]] = [[] for _ in range(tensor.dim())]
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            if not -tensor.dim() <= placement.dim < tensor.dim():
                raise ShardingError(
                    f"distribute_tensor: expected dimensions of a tensor of {tensor.dim()}, got "
                    f"{placement}."
                )
            axes[placement.dim % tensor.dim()].append(axis)
        elif not isinstance(placement, Replicate):
            raise NotImplementedError(
                f"distribute_tensor: expected Shard or Replicate on an xla mesh, got {placement}."
            )
    return tuple(tuple(of) if len(of) > 1 else of[0] if of else None for of in axes)


@with_xla
def xla_distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None = None,
) -> XLAShardedTensor:
    """A tensor split by placements.

    Args:
        tensor: On the CPU, then a copy on `xla` is split, or on `xla`, then it is split itself.
        device_mesh: A `DeviceMesh("xla", ...)` of all devices.
        placements: For each mesh dimension `Shard(dim)` or `Replicate()`; `Replicate()` for all of
            them unless given.

    Raises:
        ShardingError, NotImplementedError: The placements do not fit; see
            `convert_to_xla_partition_spec`.
    """
    mesh = convert_to_xla_mesh(device_mesh)
    if placements is None:
        placements = [Replicate()] * device_mesh.ndim
    if len(placements) != device_mesh.ndim:
        raise ShardingError(
            f"distribute_tensor: expected a placement for each of the {device_mesh.ndim} mesh "
            f"dimensions, got {list(placements)}."
        )
    plain = unwrap_sharded_tensor(tensor)
    moved = plain
    if plain.device.type != "xla":
        moved = plain.detach().to("xla").requires_grad_(plain.requires_grad)
    sharded = mark_sharding(moved, mesh, convert_to_xla_partition_spec(moved, placements))
    if isinstance(plain, nn.Parameter) and moved is not plain:
        return nn.Parameter(moved, plain.requires_grad)
    return sharded


@with_xla
def xla_distribute_module(
    module: nn.Module,
    device_mesh: DeviceMesh,
    partition_fn: Callable[[str, nn.Module, DeviceMesh], None] | None = None,
    input_fn: Callable[..., None] | None = None,
    output_fn: Callable[..., None] | None = None,
) -> nn.Module:
    """A module with its parameters on `xla`, split as a function says.

    Args:
        module: The module; what is on the CPU moves to `xla` in place.
        device_mesh: A `DeviceMesh("xla", ...)` of all devices.
        partition_fn: Called with the name of each module, the module and the mesh; splits its
            parameters. What it leaves alone is replicated.
        input_fn, output_fn: Called with the module, its inputs or outputs, and the mesh, before or
            after each forward pass.

    Returns:
        The same module.
    """
    module.to("xla")
    if partition_fn is not None:
        for name, submodule in module.named_modules():
            partition_fn(name, submodule, device_mesh)
        _unwrap_parameters(module)
    if input_fn is not None:
        module.register_forward_pre_hook(lambda m, inputs: input_fn(m, inputs, device_mesh))
    if output_fn is not None:
        module.register_forward_hook(lambda m, inputs, out: output_fn(m, out, device_mesh))
    return module


def _unwrap_parameters(module: nn.Module) -> None:
    """Parameters that a partition function has made of sharded tensors become plain ones."""
    for submodule in module.modules():
        for name, param in list(submodule._parameters.items()):
            if isinstance(param, XLAShardedTensor):
                plain = unwrap_sharded_tensor(param)
                if not isinstance(plain, nn.Parameter):
                    plain = nn.Parameter(plain.detach(), param.requires_grad)
                submodule._parameters[name] = plain
