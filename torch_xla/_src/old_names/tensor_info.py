"""`_XLAC._get_xla_tensor_debug_info` in the words of torch_xla 2.9."""

from __future__ import annotations

import re

import torch

from torch_xla import _XLAC
from torch_xla._src.device.names import is_xla_tensor


def debug_info(tensor: torch.Tensor) -> str:
    """A tensor's type, and its call or its data, as lines.

    Source: `_get_xla_tensor_debug_info` of PyTorch/XLA 2.9.
    """
    if not is_xla_tensor(tensor):
        return "Not a XLATensor\n"
    shape = _type(tensor)
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


_TYPES = {
    "Bool": "pred",
    "Char": "s8",
    "Short": "s16",
    "Int": "s32",
    "Long": "s64",
    "Byte": "u8",
    "UInt16": "u16",
    "UInt32": "u32",
    "UInt64": "u64",
    "Half": "f16",
    "BFloat16": "bf16",
    "Float": "f32",
    "Double": "f64",
    "ComplexFloat": "c64",
    "ComplexDouble": "c128",
}
_NAMES = {
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    **{
        getattr(torch, k): v
        for k, v in {
            "bool": "Bool",
            "int8": "Char",
            "int16": "Short",
            "int32": "Int",
            "int64": "Long",
            "uint8": "Byte",
            "uint16": "UInt16",
            "uint32": "UInt32",
            "uint64": "UInt64",
            "float16": "Half",
            "bfloat16": "BFloat16",
            "float32": "Float",
            "float64": "Double",
        }.items()
    },
}


def _type(tensor: torch.Tensor) -> str:
    name = _NAMES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
    return f"{_TYPES.get(name, name)}[{','.join(map(str, tensor.shape))}]"


def _call(tensor: torch.Tensor) -> str | None:
    """The call that a tensor waits for; None where it has data."""
    text = _XLAC._get_xla_tensors_text([tensor])
    root = text.rpartition("ROOT ")[2].split()[0]
    line = next(line for line in text.splitlines() if line.startswith(f"  {root} = "))
    ((name, types),) = re.findall(r"^  %\d+ = (\S+?)\(.*?\) : (.*?)(?:  // |$)", line)
    if name == "xla::device_data":
        return None
    shapes = []
    for dtype, sizes in re.findall(r"(\w+)\[([\d,]*)\]", types):
        order = ",".join(map(str, reversed(range(len(sizes.split(",")) if sizes else 0))))
        shapes.append(f"{_TYPES.get(dtype, dtype)}[{sizes}]" + (f"{{{order}}}" if order else ""))
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
