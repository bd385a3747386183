"""Names that programs written for earlier versions use of the extension.

Each is another name, or a thin form, of what torch_xla has. The extension's `__getattr__` imports
this module when it is first asked for a name that it lacks.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla import _XLAC
from torch_xla._src.old_names import coordination
from torch_xla.version import __version__


def find(name: str) -> Any:
    """The extension's attribute of a name that it does not define itself."""
    if name in _SAME:
        value = getattr(_XLAC, _SAME[name])
    elif name in _ELSEWHERE:
        module, _, attribute = _ELSEWHERE[name].partition(":")
        value = importlib.import_module(module)
        value = getattr(value, attribute) if attribute else value
    elif name in _HERE:
        value = _HERE[name]
    elif name in (others := _other_names()):
        value = others[name]
    else:
        raise AttributeError(f"module 'torch_xla._XLAC' has no attribute '{name}'")
    setattr(_XLAC, name, value)
    return value


def _other_names() -> dict[str, Any]:
    from torch_xla._src.old_names import extension_collectives, extension_graphs

    return extension_graphs.NAMES | extension_collectives.NAMES


# By another name.
_SAME = {
    "_xla_get_num_cached_compilation_graph": "_xla_num_cached_programs",
    "_xla_get_spmd_config_is_locked": "_xla_is_initialized",
    "_xla_get_tensor_view_alias_id": "_xla_get_tensor_id",
    "_xla_increment_counter": "_xla_add_to_counter",
    "_xla_num_runtime_devices": "_xla_num_real_devices",
    "_xla_runtime_is_initialized": "_xla_is_initialized",
}

# In a module, which is imported when the name is first asked for: its attribute, or itself.
_ELSEWHERE = {
    "PjRtPlugin": "torch_xla._src.device.plugins:DevicePlugin",
    "_from_dlpack": "torch_xla._src.patches.dlpack:borrow",
    "_get_executed_fallback_ops": "torch_xla.debug.metrics:executed_fallback_ops",
    "_get_xla_tensor_debug_info": "torch_xla._src.old_names.tensor_info:debug_info",
    "_prepare_to_exit": "torch_xla._src.ending:finish",
    "_register_pjrt_plugin": "torch_xla._src.device.plugins:register_plugin",
    "_to_dlpack": "torch.utils.dlpack:to_dlpack",
    "_xla_dynamic_expand": "torch_xla.experimental.xla_dynamic_reshape_ops:dynamic_expand",
    "_xla_get_mat_mul_precision": "torch_xla.backends:get_mat_mul_precision",
    "_xla_op_computation_from_module_proto": "torch_xla._src.builder.foreign_computation:from_hlo",
    "_xla_optimization_barrier_": "torch_xla.core.xla_model:optimization_barrier_",
    "_xla_set_auto_sharding": "torch_xla.distributed.spmd.auto_sharding:enable",
    "_xla_set_mat_mul_precision": "torch_xla.backends:_set",  # untold
    "_xla_spmd_all_reduce": "torch_xla.distributed.spmd.manual:all_reduce",
    "_xla_spmd_reduce_scatter": "torch_xla.distributed.spmd.manual:_reduce_scatter",
    "lowering": "torch_xla._src.old_names.lowering",
    "profiler": "torch_xla._src.profile.profiler",
}

_HERE: dict[str, Any] = {function.__name__: function for function in coordination.FUNCTIONS}


def _name(function: Callable) -> Callable:
    _HERE[function.__name__] = function
    return function


def _auto_sharding() -> bool:
    module = sys.modules.get("torch_xla.distributed.spmd.auto_sharding")
    return module is not None and module.is_enabled()


def _set_ir_debug(enable: bool) -> None:
    os.environ["XLA_IR_DEBUG"] = "1" if enable else "0"
    _XLAC._xla_refresh_debug_flags()


def _callback_of(tensor: torch.Tensor, callback: Callable[[], None]) -> None:
    from torch_xla.experimental import callback as module

    module.on_ready_callback(tensor, lambda _: callback())


def _hardware() -> list[str]:
    return [attributes["name"] for attributes in _XLAC._xla_get_all_device_attributes()]


_keeps = {"uploads": True}

# Functions of one line, each with its text for help().
_LINES: dict[str, tuple[str, Callable]] = {
    "_get_git_revs": (
        "The versions that this is made of: the commit of PyTorch, the version of torch_xla.",
        lambda: {"torch": torch.version.git_version or torch.__version__, "xla": __version__},
    ),
    "_get_ir_debug": (
        "True if recorded calls keep their Python frames: the flag XLA_IR_DEBUG.",
        lambda: _XLAC._xla_flag("XLA_IR_DEBUG"),
    ),
    "_set_ir_debug": ("Lets calls from now on keep their Python frames, or not.", _set_ir_debug),
    "_get_xla_enable_device_data_cache": (
        "The value that `_set_xla_enable_device_data_cache` was given; True by default.",
        lambda: _keeps["uploads"],
    ),
    "_set_xla_enable_device_data_cache": (
        "Changes no program: numbers go to the device with each run, and no upload is kept.",
        lambda enable: _keeps.update(uploads=bool(enable)),
    ),
    "_get_xla_tensor_dimension_size": (
        "The size of a dimension, as a tensor on the device.",
        lambda tensor, dim: torch.full(
            (), tensor.size(dim), dtype=torch.int32, device=tensor.device
        ),
    ),
    "_init_computation_client": (
        "Creates the client if there is none.",
        lambda: _XLAC._xla_get_devices().clear(),
    ),
    "_init_xla_lazy_backend": (
        "Does nothing: importing torch_xla has registered its kernels.",
        lambda: None,
    ),
    "_on_ready_callback": (
        "Calls `callback()` on another thread once the device has computed the tensor.",
        _callback_of,
    ),
    "_unsafe_buffer_pointer": (
        "Where a tensor's contents are, which is computed first. Good until they change.",
        lambda tensor: _XLAC._xla_lend(tensor.detach()).data_ptr(),
    ),
    "_xla_force_spmd_device": (
        "Switches SPMD mode on, as `xr.use_spmd`.",
        lambda: _XLAC._xla_use_spmd(),
    ),
    "_xla_get_all_devices": ('The hardware of all processes, as ["CPU:0", ...].', _hardware),
    "_xla_get_all_runtime_devices": ("`_xla_get_all_devices`.", _hardware),
    "_xla_get_auto_sharding": (
        "True if shardings are chosen for the program, as by `xr.use_spmd(auto=True)`.",
        _auto_sharding,
    ),
    "_xla_get_device_hw_type": (
        'The hardware type of a tensor\'s device: "CPU".',
        lambda tensor: _XLAC._xla_real_devices([str(tensor.device)])[0].rpartition(":")[0],
    ),
    "_xla_get_replication_devices": (
        "Empty: replicas are processes, not devices of one.",
        lambda: [],
    ),
    "_xla_get_replication_devices_count": (
        "0, the number of `_xla_get_replication_devices`.",
        lambda: 0,
    ),
    "_xla_get_runtime_devices": (
        'The hardware of this process, as ["CPU:0", ...].',
        lambda: _XLAC._xla_real_devices(),
    ),
}
for _key, (_doc, _line) in _LINES.items():
    _line.__name__, _line.__doc__ = _key, _doc
    _HERE[_key] = _line


# Tensors


@_name
class XlaShardingSpec:
    """The sharding of a tensor that moves; the arguments are those of `_XLAC.OpSharding`."""

    def __init__(
        self,
        tensor: torch.Tensor,
        tile_assignment: Sequence[Any],
        group_assignment: Sequence[Any],
        replication_groups: Sequence[Any],
        sharding_type: int,
        minibatch: bool = False,
    ):
        self.tensor, self.minibatch = tensor, minibatch
        self.sharding = _XLAC.OpSharding(
            tile_assignment, group_assignment, replication_groups, sharding_type
        )


@_name
def _xla_tensors_from_aten(
    tensors: Sequence[torch.Tensor],
    devices: Sequence[str],
    shardings: Sequence[XlaShardingSpec | None] | None = None,
) -> list[torch.Tensor]:
    """Copies of CPU tensors on devices, one for each, split as the specs say."""
    moved = [t.detach().to(device) for t, device in zip(tensors, devices, strict=True)]
    for t, spec in zip(moved, shardings or [None] * len(moved), strict=True):
        if spec is None:
            continue
        if not isinstance(spec, XlaShardingSpec):
            raise TypeError(
                "_xla_tensors_from_aten: expected an XlaShardingSpec or None for each tensor, got "
                f"{type(spec).__name__}."
            )
        _XLAC._xla_mark_sharding(t, spec.sharding)
    return moved


@_name
def _replace_xla_tensor(tensor: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Gives a tensor the memory of another one; what is written to one is in both."""
    with torch.no_grad():
        return tensor.set_(source.detach())  # type: ignore[call-overload]


# Computations


@_name
def _xla_dot_general(
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    dimension_numbers: tuple,
    precision_config: str | None = None,
    preferred_element_type: torch.dtype | None = None,
) -> torch.Tensor:
    """A product that contracts dimensions of two tensors, without a gradient.

    `dimension_numbers` are ((contracted of lhs, of rhs), (batch of lhs, of rhs)), or () in the
    place of the second; negative ones count from the end. It is computed in the precision of all
    products, whatever `precision_config`.

    Raises:
        RuntimeError: A tensor is not on `xla`.
    """
    from torch_xla.core import xla_builder, xla_op_registry

    for place, tensor in ("first", lhs), ("second", rhs):
        if tensor.device.type != "xla":
            kind = tensor.type().split(".")[-1].removesuffix("Tensor")
            raise RuntimeError(
                f"_xla_dot_general: Expected input tensor ({place} argument) to be an actual XLA "
                f"tensor. Got: {tensor.device.type.upper()}{kind}Type. Consider moving it "
                f"({place} argument) to XLA."
            )

    def from_start(dims: Sequence[int], tensor: torch.Tensor) -> list[int]:
        return [d + tensor.dim() if d < 0 else d for d in dims]

    (lhs_contracted, rhs_contracted), batch = dimension_numbers
    lhs_batch, rhs_batch = batch or ((), ())
    result = preferred_element_type
    options = {
        "lhs_contracting_dimensions": from_start(lhs_contracted, lhs),
        "rhs_contracting_dimensions": from_start(rhs_contracted, rhs),
        "lhs_batch_dimensions": from_start(lhs_batch, lhs),
        "rhs_batch_dimensions": from_start(rhs_batch, rhs),
        "preferred_element_type": result and xla_builder.Op.from_torch_type(result),
    }

    def product(x: Any, y: Any) -> Any:
        return xla_builder.mkop("DotGeneral", (x, y), **options)

    return xla_op_registry.register("xla::dot_general", product)(lhs, rhs)


def _quantization(
    name: str,
    input: torch.Tensor,
    scale: Sequence[float],
    zero_point: Sequence[int],
    quant_min: int,
    quant_max: int,
    dtype: str,
    axis: int,
) -> torch.Tensor:
    """`experimental.quantized`'s, with lists of numbers and a dtype such as "torch.int8"."""
    from torch_xla.experimental import quantized

    integers = getattr(torch, dtype.removeprefix("torch."))
    numbers = torch.tensor(list(scale)), torch.tensor(list(zero_point))
    return getattr(quantized, name)(input, *numbers, quant_min, quant_max, integers, axis)


_HERE["_xla_quantize_tensor"] = functools.partial(_quantization, "_xla_quantize")
_HERE["_xla_dequantize_tensor"] = functools.partial(_quantization, "_xla_dequantize")


@_name
def _xla_cast_int4(tensor: torch.Tensor, int4_vals: Sequence[int]) -> torch.Tensor:
    """Numbers from -8 to 7 as a tensor of this one's shape. It is int8: none has four bits."""
    numbers = torch.tensor(list(int4_vals), dtype=torch.int64)
    if numbers.numel() != tensor.numel() or bool(((numbers < -8) | (numbers > 7)).any()):
        span = f" from {int(numbers.min())} to {int(numbers.max())}" if len(numbers) else ""
        raise ValueError(
            f"_xla_cast_int4: expected a number from -8 to 7 for each of {tensor.numel()} "
            f"elements, got {len(numbers)}{span}."
        )
    return numbers.to(torch.int8).reshape(tensor.shape).to(tensor.device)


@_name
def _xla_custom_call(
    inputs: Sequence[torch.Tensor],
    target: str,
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[torch.dtype],
    has_side_effect: bool,
    backend_config: str,
    api_version: int,
    frontend_attributes: dict[str, str],
) -> list[torch.Tensor]:
    """`experimental.stablehlo_custom_call.stablehlo_custom_call`; always a list."""
    from torch_xla.experimental import stablehlo_custom_call as module

    options = has_side_effect, backend_config, api_version, frontend_attributes
    results = module.stablehlo_custom_call(inputs, target, output_shapes, output_dtypes, *options)
    return [results] if isinstance(results, torch.Tensor) else results


@_name
def _xla_mark_tensor(tensor: torch.Tensor, info: str) -> torch.Tensor:
    """`experimental.xla_marker.mark_tensor`, with the JSON of a `BoundaryMetadata`."""
    from torch_xla.experimental import xla_marker

    try:
        mark = xla_marker.BoundaryMetadata(**json.loads(info))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"_xla_mark_tensor: expected the JSON of a BoundaryMetadata, got {info!r}: {error}. "
            "xla_marker.BoundaryMetadataSerializer writes it."
        ) from error
    return xla_marker.mark_tensor(tensor, mark.name, mark.pos, mark.id, mark.is_input, mark.attr)


# Sizes, which are those of the arguments that were there when a program was recorded


@_name
def _xla_mark_dynamic(tensor: torch.Tensor, dim: int) -> None:
    """Warns: `torch.export` says which sizes of a program are dynamic (docs/export.md)."""
    if not -tensor.dim() <= dim < tensor.dim():
        raise IndexError(
            f"_xla_mark_dynamic: expected a dimension of a tensor of {tensor.dim()}, got {dim}."
        )
    _XLAC._xla_add_to_counter("XlaMarkDynamic", 1)
    warnings.warn(
        f"_xla_mark_dynamic: what is recorded of this tensor has {tensor.size(dim)} elements in "
        f"dimension {dim}. For any number, pass dynamic_shapes to torch.export.export.",
        stacklevel=2,
    )


@_name
def _xla_dynamic_view(
    tensor: torch.Tensor,
    size: Sequence[int],
    src_tensor: torch.Tensor,
    src_dim: int,
    target_dim: int,
    mul_scaler: float,
) -> torch.Tensor:
    """`torch.ops.xla.dynamic_view`."""
    from torch_xla.experimental import xla_dynamic_reshape_ops as module

    return module.dynamic_view(tensor, list(size), src_tensor, src_dim, target_dim, int(mul_scaler))


# Tokens: collectives run in the order in which they were recorded, and need none


@_name
class IrValue:
    """A token that a collective takes and gives, which says nothing."""


_tokens: dict[str, IrValue] = {}


@_name
def _get_all_reduce_token(device: str) -> IrValue:
    """The token of a device."""
    return _tokens.setdefault(_device(device), IrValue())


@_name
def _set_all_reduce_token(device: str, token: IrValue) -> None:
    """Replaces it."""
    if not isinstance(token, IrValue):
        raise TypeError(
            f"_set_all_reduce_token: expected an IrValue, got a {type(token).__name__}. "
            "_get_all_reduce_token gives one."
        )
    _tokens[_device(device)] = token


def _device(name: str) -> str:
    return f"xla:{_XLAC._xla_get_device_ordinal(str(name))}"


# Optimizers, one parameter at a time


def _of_one(function: str, names: str, lists: str) -> Callable[..., None]:
    """A function of `amp.syncfree._functional` for one parameter.

    It takes arguments of these names, by their places too; those of `lists` become lists of one,
    in that order.
    """
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names.split()])

    def step(*args: Any, **kwargs: Any) -> None:
        from torch_xla.amp.syncfree import _functional

        given = signature.bind(*args, **kwargs).arguments
        tensors = [given.pop("found_inf"), *([given.pop(name)] for name in lists.split())]
        getattr(_functional, function)(*tensors, **given)

    step.__signature__ = signature
    step.__doc__ = f"`amp.syncfree._functional.{function}` of one parameter."
    return step


_HERE["_xla_sgd_optimizer_step_"] = _of_one(
    "sgd_step",
    "found_inf step param buf d_p weight_decay momentum lr dampening nesterov maximize",
    "step param d_p buf",
)
_HERE["_xla_adam_optimizer_step_"] = _of_one(
    "adam_step",
    "found_inf step param grad exp_avg exp_avg_sq max_exp_avg_sq beta1 beta2 lr weight_decay eps "
    "amsgrad maximize use_adamw",
    "step param grad exp_avg exp_avg_sq max_exp_avg_sq",
)
