"""FSDP2 on a `DeviceMesh("xla", ...)`: what PyTorch's `fully_shard` means for SPMD.

Each device holds a part of every parameter, gradient and optimizer state. When to gather and to
drop them is the compiler's business, so what steers that in PyTorch has no effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
from torch.distributed.tensor.placement_types import Placement, Replicate, Shard
from torch.utils._pytree import tree_map_only

from torch_xla.distributed.spmd.dtensor import with_xla
from torch_xla.distributed.spmd.placements import checked
from torch_xla.distributed.spmd.xla_sharded_tensor import marked, sharding_of


class SpmdFSDPModule(FSDPModule):
    """The class that `fully_shard` gives a module on an xla mesh. Its methods that say when
    parameters are gathered have no effect; those that would change values raise.
    """

    _spmd_state: FSDPState

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """A plain module, for what makes another one of the class: a slice of a container."""
        return cls.__mro__[3](*args, **kwargs)  # FSDPLinear, this class, FSDPModule, Linear

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        raise RuntimeError(
            "copy.deepcopy: expected a module before fully_shard, got one after it. Copy it "
            "before, or load its state_dict into another one."
        )

    def _refuse(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "fully_shard: expected gradients of the whole batch, which SPMD programs compute, got "
            "a call that changes how parts of them are added."
        )

    def _get_fsdp_state(self) -> FSDPState:
        return self._spmd_state

    set_gradient_divide_factor = set_reduce_scatter_divide_factor = _refuse
    set_force_sum_reduction_for_comms = set_all_reduce_hook = _refuse
    set_custom_all_gather = set_custom_reduce_scatter = _refuse


_classes: dict[type, type] = {}  # of modules, and what they become


@with_xla
def xla_fully_shard(
    module: nn.Module | list[nn.Module],
    *,
    mesh: DeviceMesh,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None = None,
    mp_policy: MixedPrecisionPolicy | None = None,
    offload_policy: OffloadPolicy | None = None,
    ignored_params: set[nn.Parameter] | None = None,
    dp_mesh_dims: Any = None,
) -> nn.Module | list[nn.Module]:
    """Splits the parameters of a module along a mesh, but those of modules within it that are split
    already.

    Args:
        module: The module or modules; what is on the CPU moves to `xla` in place.
        mesh: A `DeviceMesh("xla", ...)`, or a sub-mesh, of one dimension; of two, then parameters
            are split along the second alone. Along other axes they stay split as they are.
        reshard_after_forward: Accepted: the compiler decides when parameters are gathered.
        shard_placement_fn: Called with each parameter, returns the `Shard` by which it is split, or
            None: along the first dimension that divides.
        mp_policy: The dtypes in which the module computes. `reduce_dtype` is accepted: gradients
            are added in the dtype in which they are computed.
        offload_policy: None that offloads.
        ignored_params: Parameters that stay as they are.
        dp_mesh_dims: The names of the dimensions of `mesh` along which parameters are split or
            replicated, as PyTorch's `DataParallelMeshDims`.

    Returns:
        `module`, whose class is an `FSDPModule` from now on. Parameters are plain, and split.

    Raises:
        ValueError: A mesh of more dimensions.
        RuntimeError: A module that is split already.
        NotImplementedError: Offloading, placements on another mesh, or parameters on "meta".
    """
    modules = [module] if isinstance(module, nn.Module) else list(module)
    if offload_policy is not None and type(offload_policy) is not OffloadPolicy:
        raise NotImplementedError(
            "fully_shard: expected no offloading on an xla mesh, got "
            f"{type(offload_policy).__name__}."
        )
    for one in modules:
        if isinstance(one, FSDPModule):
            raise RuntimeError(f"fully_shard: expected a module that is not split yet, got {one}.")
    ignored = {id(param) for param in ignored_params or ()}
    along, is_split = _dimensions(mesh, dp_mesh_dims)
    for one in modules:
        owners = list(_managed(one))
        for name, param in one.named_parameters():
            if param.is_meta:
                raise NotImplementedError(
                    f"fully_shard: expected parameters with data, got '{name}' on meta. Call "
                    "module.to_empty(device='xla') first."
                )
        for owner in owners:
            owner._apply(lambda t: t if id(t) in ignored else t.to("xla"), recurse=False)
        held = [
            (owner, name)
            for owner in owners
            for name, param in owner.named_parameters(recurse=False)
            if id(param) not in ignored
        ]
        for owner, name in held:
            _split(owner.get_parameter(name), along, is_split, shard_placement_fn)
        _SpmdState(held, mp_policy).attach(one)
    for one in modules:
        kind = type(one)
        if kind not in _classes:
            _classes[kind] = type(f"FSDP{kind.__name__}", (SpmdFSDPModule, kind), {})
        one.__class__ = _classes[kind]
    return module


def _dimensions(mesh: DeviceMesh, named: Any) -> tuple[DeviceMesh, list[bool]]:
    """The mesh along which parameters are placed, and which of its dimensions split them."""
    if named is not None:
        split, copied = named.shard_names, named.replicate_names
        names = tuple(name for name in mesh.mesh_dim_names or () if name in (*split, *copied))
        if len(names) != len(split) + len(copied):
            raise ValueError(
                f"fully_shard: expected names of {mesh.mesh_dim_names}, got {(*split, *copied)}."
            )
        return mesh[names], [name in split for name in names]
    if mesh.ndim > 2:
        raise ValueError(f"fully_shard: expected a mesh of one or two dimensions, got {mesh}.")
    return mesh, [False, True][-mesh.ndim :]


def _managed(module: nn.Module) -> Iterator[nn.Module]:
    """The module and those within it, but for those to which `fully_shard` was applied."""
    yield module
    for child in module.children():
        if not isinstance(child, FSDPModule):
            yield from _managed(child)


def _split(
    param: nn.Parameter,
    mesh: DeviceMesh,
    is_split: list[bool],
    shard_placement_fn: Callable[[nn.Parameter], Shard | None] | None,
) -> None:
    placement: Placement | None = shard_placement_fn(param) if shard_placement_fn else None
    if placement is None:
        parts = 1
        for size, splits in zip(mesh.shape, is_split, strict=True):
            parts *= size if splits else 1
        even = [dim for dim, size in enumerate(param.shape) if size % parts == 0]
        placement = Shard(even[0]) if even else Replicate()
    said = [placement if splits else Replicate() for splits in is_split]
    split = marked(param.detach(), mesh, checked(said, param.dim(), mesh, "fully_shard"))
    if sharding_of(param) != split.sharding_spec:
        param.data = split.to_local()  # it was a part of other memory


class _SpmdState(FSDPState):
    """PyTorch's state of such a module; it has no groups of parameters to gather."""

    def __init__(
        self, parameters: list[tuple[nn.Module, str]], policy: MixedPrecisionPolicy | None
    ):
        super().__init__()
        self._parameters = parameters
        self._policy = MixedPrecisionPolicy() if policy is None else policy
        self._replaced: list[list[tuple[nn.Module, str, nn.Parameter]]] = []

    def attach(self, module: nn.Module) -> None:
        """Has the module compute in the dtypes of the policy."""
        module._spmd_state = self  # type: ignore[assignment]
        if self._policy.param_dtype is not None or self._policy.output_dtype is not None:
            module.register_forward_pre_hook(self._pre_forward, prepend=True, with_kwargs=True)
            module.register_forward_hook(self._post_forward, always_call=True)

    def _pre_forward(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[Any, Any]
    ) -> tuple[tuple[Any, ...], dict[Any, Any]]:
        """Puts parameters of another dtype, whose gradients go to the real ones, in their place."""
        replaced: list[tuple[nn.Module, str, nn.Parameter]] = []
        self._replaced.append(replaced)
        dtype = self._policy.param_dtype
        if dtype is None:
            return args, kwargs
        for owner, name in self._parameters:
            param = owner._parameters[name]
            # Those of a call around this one are replaced already.
            if isinstance(param, nn.Parameter) and param.is_floating_point():
                replaced.append((owner, name, param))
                owner._parameters[name] = param.to(dtype)  # type: ignore[assignment]
        return _cast((args, kwargs), dtype) if self._policy.cast_forward_inputs else (args, kwargs)

    def _post_forward(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        for owner, name, param in self._replaced.pop():
            owner._parameters[name] = param
        return (
            output
            if self._policy.output_dtype is None
            else _cast(output, self._policy.output_dtype)
        )


def _cast(values: Any, dtype: torch.dtype) -> Any:
    """Nested values with their floating-point tensors in another dtype."""
    return tree_map_only(
        torch.Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, values
    )
