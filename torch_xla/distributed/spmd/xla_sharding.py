"""Shardings of tensors among the devices of an SPMD process.

The terms are those of GSPMD (https://arxiv.org/abs/2105.04663); programs are partitioned by Shardy
(https://openxla.org/shardy). Meshes and partition specs are described in `mesh`.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar, cast

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_xla import _XLAC
from torch_xla._internal.jax_workarounds import (  # noqa: F401
    maybe_get_jax,
    maybe_get_torchax,
    requires_jax,
)
from torch_xla.distributed.spmd import process_batches
from torch_xla.distributed.spmd.constraints import (  # noqa: F401
    apply_backward_optimization_barrier,
    constraint_of,
    split,
)
from torch_xla.distributed.spmd.manual import (  # noqa: F401
    _mark_manual_sharding,
    disable_manual_sharding,
    enable_manual_sharding,
)
from torch_xla.distributed.spmd.mesh import (  # noqa: F401
    MANUAL,
    AxisSpec,
    HybridMesh,
    Mesh,
    PartitionSpec,
    ShardingError,
    ShardingType,
    _get_group_assignment,
    _get_sharding_type,
    _get_tile_assignment,
    _translate_named_partition_spec,
    check_mesh,
    check_rank,
    get_1d_mesh,
    get_global_mesh,
    set_global_mesh,
    sharding_text,
)
from torch_xla.distributed.spmd.patched_linear import (  # noqa: F401
    EinsumLinear,
    XLAPatchedLinear,
    _einsum_linear_backward_fake,
    _einsum_linear_backward_operation,
    _einsum_linear_forward_fake,
    apply_xla_patch_to_nn_linear,
    xla_patched_nn_linear_forward,
)
from torch_xla.distributed.spmd.torus import (  # noqa: F401
    _create_device_mesh_for_nd_torus,
    _create_device_mesh_for_nd_torus_splitting_axes,
    _enumerate_feasible_logical_axis_assignments,
    _generate_logical_mesh,
    _get_physical_tpu_mesh,
    _get_prime_factors,
    _prefer_first_logical_axis_assignment,
)
from torch_xla.distributed.spmd.xla_sharded_tensor import (
    XLAShardedTensor,
    unwrap_sharded_tensor,
    wrap_as_sharded_tensor,
)

PyTreeA = TypeVar("PyTreeA")
PyTreeB = TypeVar("PyTreeB")


def __getattr__(name: str) -> Mesh | None:
    # Earlier versions kept the mesh of `set_global_mesh` in this module.
    if name == "_GLOBAL_MESH":
        return get_global_mesh()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def mark_sharding(
    t: torch.Tensor | XLAShardedTensor,
    mesh: Mesh,
    partition_spec: PartitionSpec,
    dynamo_custom_op: bool = False,
) -> XLAShardedTensor:
    """Says how a tensor is split among the devices; the programs that compute with it follow.

    Data that exists is split at once, and each device is sent its part alone if the tensor was just
    moved to `xla`. What waits to be computed is split when it is. What is written into the tensor
    later is split in the same way. The tensor itself, its gradient and its values stay.

    Args:
        t: The tensor, on `xla`; or on `meta`, for `torch_xla.aot`.
        mesh: The devices.
        partition_spec: For each dimension of `t` the mesh axis along which it is split, by name or
            index, a tuple of axes, or None.
        dynamo_custom_op: Accepted: calls within a region of `torch.compile` are recorded anyway.

    Returns:
        The tensor as an `XLAShardedTensor`, which shows its shards.

    Raises:
        ShardingError: The spec does not fit the tensor or the mesh, or the mesh the devices.
        RuntimeError: The process is not in SPMD mode.

    Example:
        >>> mesh = Mesh(np.arange(8), (4, 2), ('x', 'y'))
        >>> xs.mark_sharding(torch.randn(8, 32).to('xla'), mesh, ('x', None))
    """
    if torch.compiler.is_compiling():
        return cast(XLAShardedTensor, marked(t, mesh, partition_spec))
    check_mesh(mesh, "mark_sharding")
    check_rank(t.dim(), partition_spec, "mark_sharding")
    plain: Any = unwrap_sharded_tensor(t)
    if plain.device.type == "meta":  # torch_xla.aot splits what stands for it
        plain._xla_sharding = sharding_text(
            mesh._label, partition_spec, plain.dim(), "mark_sharding"
        )
    else:
        _XLAC._xla_mark_sharding(plain, mesh.get_op_sharding(partition_spec))
    return _said(t, mesh, partition_spec)


def annotate_custom_sharding(
    t: torch.Tensor | XLAShardedTensor, mesh: Mesh, partition_spec: PartitionSpec
) -> XLAShardedTensor:
    """`mark_sharding` for the present value alone: what is written into the tensor later is split
    as the compiler chooses.

    Raises:
        ShardingError, RuntimeError: As `mark_sharding`.
    """
    if torch.compiler.is_compiling():
        return cast(XLAShardedTensor, marked(t, mesh, partition_spec, "annotate_custom_sharding"))
    check_mesh(mesh, "annotate_custom_sharding")
    check_rank(t.dim(), partition_spec, "annotate_custom_sharding")
    plain = unwrap_sharded_tensor(t)
    _XLAC._xla_annotate_custom_sharding(plain, mesh.get_op_sharding(partition_spec))
    return _said(t, mesh, partition_spec)


def _said(
    t: torch.Tensor | XLAShardedTensor, mesh: Mesh, partition_spec: PartitionSpec
) -> XLAShardedTensor:
    if isinstance(t, XLAShardedTensor):
        t.say(mesh.mesh_shape, partition_spec, mesh)
        return t
    return XLAShardedTensor(t, mesh.mesh_shape, partition_spec, mesh=mesh)


def clear_sharding(t: torch.Tensor | XLAShardedTensor) -> torch.Tensor:
    """Takes back what `mark_sharding` said: each device holds the whole tensor again.

    Returns:
        The plain tensor.
    """
    plain = unwrap_sharded_tensor(t)
    _XLAC._xla_clear_sharding(plain)
    return plain


class MarkShardingFunction(torch.autograd.Function):
    """Splits a value and, in the backward pass, its gradient alike.

    Usage: `MarkShardingFunction.apply(tensor, mesh, partition_spec)`.
    """

    @staticmethod
    def forward(
        ctx: Any, torch_tensor: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec
    ) -> torch.Tensor:
        ctx.mesh, ctx.partition_spec = mesh, partition_spec
        return constrained(torch_tensor, mesh, partition_spec)

    @staticmethod
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return constrained(grad_output, ctx.mesh, ctx.partition_spec), None, None


def aot_mark_sharding_fake(t: torch.Tensor, mesh: str, partition_spec: str) -> torch.Tensor:
    """The result of `torch.ops.xla.aot_mark_sharding`, without values."""
    return torch.empty_like(t)


def mark_sharding_with_gradients(
    t: torch.Tensor | XLAShardedTensor, mesh: Mesh, partition_spec: PartitionSpec
) -> torch.Tensor:
    """The tensor's value, split so, as a new tensor whose gradient is split alike.

    Use it on activations whose gradients the compiler would split otherwise.

    Raises:
        ShardingError, RuntimeError: As `mark_sharding`.
    """
    return constrained(
        unwrap_sharded_tensor(t), mesh, partition_spec, "mark_sharding_with_gradients"
    )


def constrained(
    t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec, who: str = "mark_sharding"
) -> torch.Tensor:
    """A tensor of the same values that is split so, and whose gradient is."""
    text = sharding_text(mesh._label, partition_spec, t.dim(), who)
    return torch.ops.torch_xla.sharding_constraint(t, text)


def marked(
    t: torch.Tensor, mesh: Mesh, partition_spec: PartitionSpec, who: str = "mark_sharding"
) -> torch.Tensor:
    """The tensor itself, split so from now on."""
    text = sharding_text(mesh._label, partition_spec, t.dim(), who)
    return torch.ops.torch_xla.mark_sharding_(t, text)


def shard_as(a: PyTreeA, b: PyTreeB) -> tuple[PyTreeA, PyTreeB]:
    """Splits the tensors of two nests alike.

    Of each pair, what has no sharding gets that of the other, in its value and in its gradient. If
    both have one, `b` gets that of `a`. If none has, both stay as they are, and the compiler
    chooses for each by itself: no constraint says "as that one" before one of them is split.

    Args:
        a, b: Nested lists, tuples and dicts alike, with xla tensors of the same sizes.

    Returns:
        Both nests, with new tensors where a value is split.

    Raises:
        ValueError: The nests differ.
        RuntimeError: The process is not in SPMD mode.

    Example:
        >>> activation, residual = xs.shard_as(activation, residual)
    """
    flat_a, nest_a = tree_flatten(a)
    flat_b, nest_b = tree_flatten(b)
    if nest_a != nest_b:
        raise ValueError(f"shard_as: expected equal nests, got {nest_a} and {nest_b}.")
    pairs = [_alike(x, y) for x, y in zip(flat_a, flat_b, strict=True)]
    new_a, new_b = (list(side) for side in zip(*pairs, strict=True)) if pairs else ([], [])
    return tree_unflatten(new_a, nest_a), tree_unflatten(new_b, nest_b)


def _alike(a: Any, b: Any) -> tuple[Any, Any]:
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return a, b
    if a.shape != b.shape:
        raise ValueError(
            f"shard_as: expected tensors of the same sizes, got {list(a.shape)} and "
            f"{list(b.shape)}."
        )
    plain = [unwrap_sharded_tensor(t) for t in (a, b)]
    text = constraint_of(plain[0]) or constraint_of(plain[1])
    if text is None:
        return a, b
    new_a, new_b = (
        t if constraint_of(value) == text else split(value, text, text)
        for t, value in zip((a, b), plain, strict=True)
    )
    return new_a, new_b


@dataclasses.dataclass
class ShardingSpec:
    """A mesh and a partition spec, as loaders take them (`input_sharding`).

    With `minibatch` each process's batch is its part of a global one, the first process's rows
    first; without it all processes give the same whole.
    """

    mesh: Mesh
    partition_spec: PartitionSpec
    minibatch: bool | None = False

    def xla_spec(self, t: torch.Tensor) -> Any:
        """The tensor with its sharding, as `_XLAC._xla_tensors_from_aten` takes it; None where the
        spec does not fit.
        """
        if not self.can_apply(t):
            return None
        tiles = _get_tile_assignment(self.mesh, self.partition_spec)
        kind = _get_sharding_type(self.partition_spec, self.mesh.size())
        if kind in (ShardingType.TILED, ShardingType.PARTIAL):  # an axis may be left without a None
            kind = ShardingType.PARTIAL if tiles.ndim > t.dim() else ShardingType.TILED
        from torch_xla._src.old_names.extension import XlaShardingSpec  # few programs use it

        groups, copies = _get_group_assignment(kind, tiles, t.dim(), set())
        return XlaShardingSpec(t, tiles.tolist(), groups, copies, int(kind), bool(self.minibatch))

    def can_apply(self, t: torch.Tensor) -> bool:
        """True if the spec has an entry for each dimension of the tensor."""
        return len(t.shape) == len(self.partition_spec)

    def apply(self, t: torch.Tensor) -> None:
        """Splits a tensor on `xla`; see `mark_sharding`."""
        mark_sharding(t, self.mesh, self.partition_spec)

    def move(self, t: torch.Tensor, device: torch.device) -> torch.Tensor:
        """A tensor of the CPU on `xla`, split where the spec fits: for loaders."""
        if not self.can_apply(t):
            return t.to(device)
        if self.minibatch and t.dim() > 0:
            _check_minibatch(t)
            if _XLAC._xla_get_num_processes() > 1:
                return process_batches.join(t, self.mesh, self.partition_spec)
        moved = t.to(device)
        self.apply(moved)
        return moved


def _check_minibatch(t: torch.Tensor) -> None:
    count = _XLAC._xla_num_real_devices()
    if t.shape[0] % count != 0:
        raise RuntimeError(
            "When minibatch is configured, the per-host batch size must be divisible by local "
            f"runtime device count. Per host input data shape = {t.shape}, "
            f"local_runtime_device_count = {count}."
        )


def wrap_if_sharded(x: Any) -> Any:
    """An xla tensor that is split among devices as an `XLAShardedTensor`; all else as it is."""
    if not isinstance(x, torch.Tensor) or isinstance(x, XLAShardedTensor):
        return x
    if x.device.type == "xla":
        is_split = _XLAC._get_xla_sharding_type(x) not in (None, ShardingType.REPLICATED)
    else:
        is_split = hasattr(x, "_xla_sharding")
    return wrap_as_sharded_tensor(x) if is_split else x
