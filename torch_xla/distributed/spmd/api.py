"""Functions that `distribute_tensor` and `distribute_module` call for a `DeviceMesh("xla", ...)`.

Tensors are split by `mark_sharding`: what comes out is one tensor of the whole, which programs
compute with in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import Placement, Replicate

from torch_xla._src.dynamo.uncaptured import uncaptured
from torch_xla.distributed.spmd import partial
from torch_xla.distributed.spmd.dtensor import as_dtensors, with_xla
from torch_xla.distributed.spmd.placements import (  # noqa: F401
    checked,
    convert_to_xla_mesh,
    has_partial,
    normalized,
    spec_along,
)
from torch_xla.distributed.spmd.xla_sharded_tensor import (
    XLAShardedTensor,
    marked,
    sharding_of,
    unwrap_sharded_tensor,
)
from torch_xla.distributed.spmd.xla_sharding import mark_sharding  # noqa: F401


def convert_to_xla_partition_spec(
    tensor: torch.Tensor, placements: Sequence[Placement]
) -> tuple[Any, ...]:
    """The partition spec of placements, one for each dimension of a mesh of all devices.

    Raises:
        ShardingError: A dimension that the tensor lacks.
        NotImplementedError: Neither `Shard` nor `Replicate`.
    """
    said = normalized(placements, tensor.dim(), "distribute_tensor")
    return spec_along(tensor.dim(), [[axis] for axis in range(len(said))], said)


@uncaptured(
    "distribute_tensor says how a tensor is split from now on; in a graph, use DTensor.from_local"
)
@with_xla
def xla_distribute_tensor(
    tensor: torch.Tensor,
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None = None,
) -> XLAShardedTensor:
    """A tensor split by placements.

    Args:
        tensor: On the CPU, then a copy on `xla` is split, or on `xla`, then it is split itself, and
            the result shares its memory; of a view a copy is split. What is made of a leaf is one.
        device_mesh: A `DeviceMesh("xla", ...)` of all devices, or a sub-mesh of one. Along the axes
            that a sub-mesh lacks the tensor stays split as it is.
        placements: For each mesh dimension `Shard(dim)` or `Replicate()`; `Replicate()` for all of
            them unless given. With `Partial()` each device gets an equal share of a copy; of
            `Partial("avg")`, `"min"` and `"max"`, the copy.

    Raises:
        ShardingError: The placements do not fit the tensor or the mesh.
        NotImplementedError: Neither `Shard`, `Replicate` nor `Partial`.
        ValueError, TypeError: The value has no such shares; several reductions.
    """
    who = "distribute_tensor"
    if placements is None:
        placements = [Replicate()] * device_mesh.ndim
    said = checked(placements, tensor.dim(), device_mesh, who, may_be_partial=True)
    plain = unwrap_sharded_tensor(tensor)
    moved = plain.detach() if plain.is_leaf else plain
    if has_partial(said):
        held = partial.distributed(moved.to("xla"), device_mesh, said, who)
        if plain.is_leaf:
            held.requires_grad_(plain.requires_grad)
        return held
    present = None
    if plain.device.type == "xla":
        present = sharding_of(plain)
        if plain._is_view():
            moved = moved.clone()
    split = marked(moved.to("xla"), device_mesh, said, present)
    if plain.is_leaf:
        split.requires_grad_(plain.requires_grad)
    return split


@uncaptured("a tensor that is made is distributed outside of torch.compile")
@with_xla
def made_by(
    init_op: Callable[..., torch.Tensor],
    size: Sequence[int],
    device_mesh: DeviceMesh,
    placements: Sequence[Placement] | None,
    **kwargs: Any,
) -> XLAShardedTensor:
    """`torch.distributed.tensor.zeros` and the like for a `DeviceMesh("xla", ...)`."""
    fill = [kwargs.pop("fill_value")] if "fill_value" in kwargs else []
    whole = init_op(size, *fill, **{**kwargs, "device": "xla"})
    return xla_distribute_tensor(whole, device_mesh, placements)


@uncaptured("distribute_module changes a module")
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
        device_mesh: A `DeviceMesh("xla", ...)`.
        partition_fn: Called with the name of each module, the module and the mesh; splits its
            parameters. `auto_policy` is one. What it leaves alone is replicated. DTensors that it
            registers as parameters become plain Parameters, which stay split.
        input_fn, output_fn: Called with the module, its inputs or outputs, and the mesh, before or
            after each forward pass. Outputs come as DTensors.

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
        module.register_forward_hook(
            lambda m, inputs, out: output_fn(m, as_dtensors(out, device_mesh), device_mesh)
        )
    module._distribute_module_applied = True  # type: ignore[assignment]  # PyTorch refuses to do it twice
    return module


def auto_policy(mod_name: str, mod: nn.Module, mesh: DeviceMesh) -> None:
    """A `partition_fn` of `distribute_module` that lets the module's split be chosen.

    From then on it is chosen for all programs of the process, as `xr.use_spmd(auto=True)` does,
    along the dimensions of `mesh`: when a program first runs, with all that it computes at hand.

    Args:
        mod_name: The name of a module within the one that is distributed.
        mod: The module.
        mesh: A `DeviceMesh("xla", ...)` of all devices, of one or two dimensions.

    Raises:
        ShardingError: Another mesh.
        ImportError: There is no `scipy`.
    """
    from torch_xla.distributed.spmd import auto_sharding

    if mod_name == "":
        auto_sharding.enable(convert_to_xla_mesh(mesh))


def _unwrap_parameters(module: nn.Module) -> None:
    """Parameters that a partition function has made of sharded tensors become plain ones."""
    for submodule in module.modules():
        for name, param in list(submodule._parameters.items()):
            if isinstance(param, XLAShardedTensor):
                plain = unwrap_sharded_tensor(param).detach()
                submodule._parameters[name] = nn.Parameter(plain, param.requires_grad)
