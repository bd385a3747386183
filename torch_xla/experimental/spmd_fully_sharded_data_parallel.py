"""FSDPv2: fully sharded data parallelism said by shardings, which the compiler carries out.

Each device holds a part of every parameter, gradient and optimizer state; the parts of a parameter
are gathered where a layer needs them. See "PyTorch FSDP" (https://arxiv.org/abs/2304.11277) for the
algorithm and GSPMD (https://arxiv.org/abs/2105.04663) for how a compiler derives it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torch_xla.distributed.spmd as xs
from torch_xla.distributed.fsdp.wrap import recursive_wrap
from torch_xla.distributed.spmd.xla_sharding import ShardingError

_AXIS = "fsdp"
_INNER = "_orig_module"


class SpmdFullyShardedDataParallel(nn.Module):
    """Wraps a module: its parameters are split along the mesh axis "fsdp", its output along the
    batch.

    The module may be on the CPU: parameters move to `xla` one by one, and each device is sent its
    part alone. It may be on "meta": what it holds is undefined then until `load_state_dict` or its
    modules' `reset_parameters()` fill it, and no device ever holds a whole one. The optimizer is
    made after wrapping; its state is split as the parameters are.

    `state_dict()` has the keys of the module itself, so that it loads into one that is not wrapped,
    or wrapped otherwise; `load_state_dict` takes keys with "_orig_module." too. What is loaded is
    split as the parameters are.

    Args:
        module: The module; wrap it with `checkpoint_module` first to have its activations computed
            again in the backward pass.
        mesh: The devices, with an axis named "fsdp"; without it that of `xs.set_global_mesh`.
        shard_output: `shard_output(output, mesh)` splits the module's output, by `mark_sharding`.
            Without it the output, or the first element of a tuple or list, is split along its first
            dimension.
        auto_wrap_policy: Chooses modules within `module` that are wrapped by themselves; see
            `torch_xla.distributed.fsdp.wrap`.
        auto_wrapper_callable: Wraps those, called with the module and the keyword arguments of this
            class; this class unless given.
        extra_data_axis: Another axis along which the batch is split, and parameters are not: data
            parallelism between the groups that share parameters.

    Raises:
        ShardingError: The mesh has no such axis.
        ValueError: There is no mesh.
        RuntimeError: The process is not in SPMD mode.
    """

    def __init__(
        self,
        module: nn.Module,
        mesh: xs.Mesh | None = None,
        shard_output: Callable[[Any, xs.Mesh], None] | None = None,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        extra_data_axis: str | None = None,
    ):
        if isinstance(module, SpmdFullyShardedDataParallel):
            raise RuntimeError("FSDPv2: expected a module that is not wrapped yet.")
        mesh = mesh if mesh is not None else xs.get_global_mesh()
        if mesh is None:
            raise ValueError(
                "No mesh is provided and no global mesh is set. Please provide a mesh. "
                "torch_xla.distributed.spmd.set_global_mesh sets one."
            )
        if mesh.get_axis_name_idx(_AXIS) is None:
            raise ShardingError(
                f"The mesh must have an axis named '{_AXIS}', got one with {mesh.axis_names}."
            )
        if extra_data_axis is not None and mesh.get_axis_name_idx(extra_data_axis) is None:
            raise ShardingError(f"The provided {extra_data_axis} axis is not in the mesh.")
        super().__init__()
        _split_parameters(module, mesh)  # all at once, so that shared ones stay shared
        if auto_wrap_policy is not None:
            recursive_wrap(
                module,
                auto_wrap_policy=auto_wrap_policy,
                wrapper_cls=auto_wrapper_callable or type(self),
                ignored_modules=set(),
                ignored_params=set(),
                only_wrap_children=True,
                mesh=mesh,
                extra_data_axis=extra_data_axis,
            )
        self._orig_module = module
        self._mesh = mesh
        self._shard_output = shard_output
        self._extra_data_axis = extra_data_axis
        self.register_state_dict_post_hook(_drop_inner_name)
        self.register_load_state_dict_pre_hook(_add_inner_name)

    @property
    def module(self) -> nn.Module:
        """The module that is wrapped."""
        return self._orig_module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's output, split."""
        output = self.module(*args, **kwargs)
        if self._shard_output is not None:
            self._shard_output(output, self._mesh)
            return output
        first = output[0] if isinstance(output, (tuple, list)) and output else output
        if not isinstance(first, torch.Tensor):
            raise RuntimeError(
                "FSDPv2: expected an output that is a tensor, or a tuple that begins with one, got "
                f"{type(output).__name__}. Pass shard_output."
            )
        if first.dim() != 0:
            spec = _prepare_spmd_partition_spec(first, self._extra_data_axis)
            xs.mark_sharding(first, self._mesh, spec)
        return output

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_module"), name)

    def __getitem__(self, key: Any) -> nn.Module:
        container: Any = self._orig_module
        return container[key]


def _drop_inner_name(
    wrapper: nn.Module, state: dict[str, Any], prefix: str, metadata: dict[str, Any]
) -> None:
    """After `state_dict()`: its keys are those of the module that is wrapped."""
    inner = f"{prefix}{_INNER}."
    for key in [key for key in state if key.startswith(inner)]:
        state[prefix + key.removeprefix(inner)] = state.pop(key)
    versions = getattr(state, "_metadata", {})  # by the name of each module
    for name in [name for name in versions if f"{name}.".startswith(inner)]:
        versions[(prefix + f"{name}.".removeprefix(inner))[:-1]] = versions.pop(name)


def _add_inner_name(wrapper: nn.Module, state: dict[str, Any], prefix: str, *rest: object) -> None:
    """Before `load_state_dict()`: the keys of the module are those by which it is found here."""
    inner = f"{prefix}{_INNER}."
    for key in [key for key in state if key.startswith(prefix) and not key.startswith(inner)]:
        state[inner + key.removeprefix(prefix)] = state.pop(key)


def _prepare_spmd_partition_spec(
    param: torch.Tensor, extra_data_axis: str | None = None, shard_maximal: bool = False
) -> tuple[Any, ...]:
    """A spec that splits a dimension along "fsdp": the first, or with `shard_maximal` the largest.

    With `extra_data_axis` it is split along both axes.
    """
    spec: list[Any] = [None] * param.dim()
    dim = max(range(param.dim()), key=lambda i: param.shape[i]) if shard_maximal else 0
    spec[dim] = _AXIS if extra_data_axis is None else (extra_data_axis, _AXIS)
    return tuple(spec)


def _parameter_spec(param: torch.Tensor, mesh: xs.Mesh) -> tuple[Any, ...]:
    """Splits the largest dimension that divides: programs gather others, to cut off padding."""
    size = mesh.shape()[_AXIS]
    even = [i for i in range(param.dim()) if param.shape[i] % size == 0 and param.shape[i] > 0]
    spec: list[Any] = [None] * param.dim()
    if even:
        spec[max(even, key=lambda i: param.shape[i])] = _AXIS
    return tuple(spec)


def _split_parameters(module: nn.Module, mesh: xs.Mesh) -> None:
    """Moves what is not on `xla` there, and splits the parameters that are not split yet."""
    moved: dict[int, nn.Parameter] = {}  # shared ones stay shared
    for owner in module.modules():
        for name, param in list(owner._parameters.items()):
            if param is None:
                continue
            new = moved.get(id(param))
            if new is None:
                new = param
                if param.device.type != "xla":
                    new = nn.Parameter(_moved(param.detach()), param.requires_grad)
                if xs.wrap_if_sharded(new) is new:
                    xs.mark_sharding(new, mesh, _parameter_spec(new, mesh))
                moved[id(param)] = moved[id(new)] = new
            owner._parameters[name] = new
        for name, buffer in list(owner._buffers.items()):
            if buffer is not None and buffer.device.type != "xla":
                owner._buffers[name] = _moved(buffer)


def _moved(t: torch.Tensor) -> torch.Tensor:
    """The tensor on `xla`; one on "meta" has no values to move."""
    return torch.empty(t.shape, dtype=t.dtype, device="xla") if t.is_meta else t.to("xla")
