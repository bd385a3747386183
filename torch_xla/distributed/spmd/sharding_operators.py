"""Operators by which a graph of `torch.compile` or `torch.export` says how tensors are split.

`mark_sharding` and its like use them by themselves; `torch.ops.xla.dynamo_mark_sharding` is the one
that programs of torch_xla 2.3 call.
"""

from __future__ import annotations

import ast
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla.distributed.spmd.xla_sharding import Mesh, constrained, marked


def dynamo_mark_sharding(
    input: torch.Tensor,
    device_ids: list[int],
    mesh_shape: list[int],
    axis_names: str,
    partition_spec: str,
) -> torch.Tensor:
    """`mark_sharding` with arguments that graphs can hold.

    Args:
        input: The tensor; it is split from now on.
        device_ids: The devices of the mesh.
        mesh_shape: The sizes of the mesh.
        axis_names: A tuple of the axes' names as text, `"('x', 'y')"`, or "None".
        partition_spec: The partition spec as text, `"('x', None)"`.

    Returns:
        The same tensor.

    Raises:
        ShardingError: As `mark_sharding`.
    """
    mesh = Mesh(device_ids, tuple(mesh_shape), ast.literal_eval(axis_names))
    return marked(input, mesh, ast.literal_eval(partition_spec))


def aot_mark_sharding(t: torch.Tensor, mesh: str, partition_spec: str) -> torch.Tensor:
    """A tensor of the same values that is split so; mesh and partition spec as `str()` of them."""
    described = Mesh.from_str(mesh)
    if described is None:
        raise ValueError(f"aot_mark_sharding: expected str() of a Mesh, got {mesh!r}.")
    return constrained(t, described, ast.literal_eval(partition_spec))


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    return torch.ops.torch_xla.sharding_constraint(grad, ctx.sharding), None


def _keep_sharding(ctx: Any, inputs: tuple[torch.Tensor, str], output: torch.Tensor) -> None:
    ctx.sharding = inputs[1]


_own = torch.library.Library("torch_xla", "FRAGMENT")
torch.library.register_autograd(
    "torch_xla::sharding_constraint", _backward, setup_context=_keep_sharding, lib=_own
)


def _back_to_full(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
    # Devices that had copies of one part used it each for itself.
    return torch.ops.torch_xla.shard_to_full(grad, ctx.sharding, True), None


def _back_to_shard(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
    part = torch.ops.torch_xla.full_to_shard(grad, ctx.sharding)
    copies = _XLAC._copies_of_parts(ctx.sharding)
    return part if ctx.sum or copies == 1 else part / copies, None, None


def _keep_sharding_and_sum(
    ctx: Any, inputs: tuple[torch.Tensor, str, bool], output: torch.Tensor
) -> None:
    ctx.sharding, ctx.sum = inputs[1:]


torch.library.register_autograd(
    "torch_xla::full_to_shard", _back_to_full, setup_context=_keep_sharding, lib=_own
)
torch.library.register_autograd(
    "torch_xla::shard_to_full", _back_to_shard, setup_context=_keep_sharding_and_sum, lib=_own
)

_library = torch.library.Library("xla", "FRAGMENT")
_library.define(
    "dynamo_mark_sharding(Tensor(a!) input, int[] device_ids, int[] mesh_shape, str axis_names, "
    "str partition_spec) -> Tensor(a!)"
)
_library.define("aot_mark_sharding(Tensor t, str mesh, str partition_spec) -> Tensor")
# Both are made of the operators above.
_library.impl("dynamo_mark_sharding", dynamo_mark_sharding, "CompositeImplicitAutograd")
_library.impl("aot_mark_sharding", aot_mark_sharding, "CompositeImplicitAutograd")
