"""`_XLAC._get_xla_tensor_debug_info` in the words of torch_xla 2.9."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torch_xla import _XLAC
from torch_xla._src.builder.shapes import PT_XLA_TYPE_MAP
from torch_xla._src.device.names import is_xla_tensor


def debug_info(tensor: torch.Tensor) -> str:
    """A tensor's type, and its call or its data, as lines.

    Source: `_get_xla_tensor_debug_info` of PyTorch/XLA 2.9.
    """
    if not is_xla_tensor(tensor):
        return "Not a XLATensor\n"
    shape = _type(tensor.dtype, tensor.shape)
    spec = _XLAC._get_xla_sharding_spec(tensor) or "None"
    data = _XLAC._xla_data_id(tensor)
    call = _call(tensor)
    lines = [
        f"TensorID: {_XLAC._xla_get_tensor_id(tensor)}",
        f"AliasID: {_XLAC._xla_get_tensor_id(tensor)}",
        f"Device: {_device(tensor)}",
        f"XLA Shape: {shape}",
        f"ShardingSpec: {spec}",
        f"IR: {call}",
    ]
    is_on_host = call is None and data != 0 and _is_on_host(data)
    if call is not None or data == 0 or is_on_host:
        lines.append("XLAData: None")
    elif _XLAC._xla_is_spmd():
        lines += [
            "XLAShardedData: ",
            f"  Data Device: {_device(tensor)}",
            f"  Data Shape: {shape}",
            f"  OpSharding: {'{replicated}' if spec == 'None' else spec}",
            f"  NumShards: {_XLAC._xla_num_real_devices()}",
        ]
    else:
        handle = "Deleted" if _XLAC._is_placecholder(tensor) else data
        lines += [
            "XLAData: ",
            f"  Data Device: {_device(tensor)}",
            f"  Data Shape: {shape}",
            f"  Data Handle: {handle}",
        ]
    size = list(tensor.shape)
    lines.append(f"Tensor on host: {f'with size {size}' if is_on_host else 'None'}")
    return "\n".join(["XLATensor {", *lines, "}"]) + "\n"


def _type(dtype: torch.dtype, sizes: Sequence[int]) -> str:
    name = PT_XLA_TYPE_MAP.get(dtype, str(dtype).removeprefix("torch."))
    return f"{name}[{','.join(map(str, sizes))}]"


def _call(tensor: torch.Tensor) -> str | None:
    """The call that a tensor waits for; None where it has data."""
    found = _XLAC._xla_call_of(tensor)
    if found is None:
        return None
    name, results = found
    shapes = []
    for dtype, sizes in results:
        order = ",".join(map(str, reversed(range(len(sizes)))))
        shapes.append(_type(dtype, sizes) + (f"{{{order}}}" if order else ""))
    told = shapes[0] if len(shapes) == 1 else f"({', '.join(shapes)})"
    count = f", num_outputs={len(shapes)}" if len(shapes) > 1 else ""
    return f"[] {name.partition('.')[0]}{count}, xla_shape={told}, dynamic_dims: ()"


def _device(tensor: torch.Tensor) -> str:
    if _XLAC._xla_is_spmd():
        return "SPMD:0"
    return _XLAC._xla_real_devices([str(tensor.device)])[0]


def _is_on_host(data: int) -> bool:
    """True if no device has been sent a part of it."""
    known = {d["id"]: d["bytes"] for d in _XLAC._xla_live_data()}
    return known.get(data, -1) == 0
