"""Serialized `xla.HloModuleProto`s as protobuf's text and as JSON, without protobuf.

The fields are those of openxla's `hlo.proto` and `xla_data.proto`. What is not listed here stands
in the text by its number, as protobuf writes fields that it does not know, and is left out of JSON.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Iterator
from typing import Any

_ELEMENTS = (
    "PRIMITIVE_TYPE_INVALID PRED S8 S16 S32 S64 U8 U16 U32 U64 F16 F32 F64 TUPLE OPAQUE_TYPE C64 "
    "BF16 TOKEN C128 F8E5M2 F8E4M3FN S4 U4 F8E4M3B11FNUZ F8E5M2FNUZ F8E4M3FNUZ S2 U2 F8E4M3 F8E3M4"
).split()
_ENUMS = {
    "element": _ELEMENTS,
    "precision": ["DEFAULT", "HIGH", "HIGHEST"],
    "fft": ["FFT", "IFFT", "RFFT", "IRFFT"],
    "sharding": ["REPLICATED", "MAXIMAL", "TUPLE", "OTHER", "MANUAL", "UNKNOWN"],
    "transpose": ["TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"],
}
# For each message: number, name, and type, with `*` where the field is repeated. `i` is an integer
# of 64 bits, `n` one of 32, `s` a text, `y` bytes.
_MESSAGES = {
    "module": "1 name s, 2 entry_computation_name s, 3 computations computation*, "
    "4 host_program_shape program, 5 id i, 6 entry_computation_id i, 7 schedule schedule, "
    "8 input_output_alias aliases, 11 is_dynamic b, 12 spmd_output_sharding sharding_of, "
    "14 spmd_parameters_shardings sharding_of*, 16 use_auto_spmd_partitioning b, "
    "19 frontend_attributes attributes",
    "computation": "1 name s, 2 instructions instruction*, 4 program_shape program, 5 id i, "
    "6 root_id i, 7 is_fusion_computation b, 8 execution_thread s",
    "instruction": "1 name s, 2 opcode s, 3 shape shape, 7 metadata metadata, 8 literal literal, "
    "9 parameter_number i, 11 fusion_kind s, 13 tuple_index i, 14 dimensions i*, 15 window window, "
    "16 convolution_dimension_numbers convolution, 17 slice_dimensions slice*, "
    "20 dynamic_slice_sizes i*, 21 padding_config padding, 26 channel_id i, "
    "28 custom_call_target s, 30 dot_dimension_numbers dot, 31 fft_type fft, 32 fft_length i*, "
    "33 gather_dimension_numbers gather, 34 gather_slice_sizes i*, 35 id i, 36 operand_ids i*, "
    "37 control_predecessor_ids i*, 38 called_computation_ids i*, 40 sharding sharding_of, "
    "43 backend_config y, 48 scatter_dimension_numbers scatter, 49 replica_groups group*, "
    "50 feature_group_count i, 51 precision_config precisions, "
    "55 custom_call_has_side_effect b, 58 batch_group_count i, "
    "59 triangular_solve_options triangular, 60 is_stable b, 62 cholesky_options cholesky, "
    "63 comparison_direction s, 68 frontend_attributes attributes, 71 use_global_device_ids b, "
    "72 comparison_type s",
    "program": "1 parameters shape*, 2 result shape, 3 parameter_names s*",
    "shape": "2 element_type element, 3 dimensions i*, 4 tuple_shapes shape*, 5 layout layout, "
    "6 is_dynamic_dimension b*",
    "layout": "1 minor_to_major i*, 7 element_size_in_bits i, 8 memory_space i, "
    "16 tail_padding_alignment_in_elements i",
    "metadata": "1 op_type s, 2 op_name s, 3 source_file s, 4 source_line n",
    "literal": "1 shape shape, 2 preds b*, 3 u8s y, 4 s32s n*, 5 s64s i*, 6 u32s n*, 7 u64s i*, "
    "8 f32s f*, 9 f64s d*, 10 tuple_literals literal*, 11 f16s y, 12 c64s f*, 13 bf16s y, "
    "15 s8s y, 16 u16s y, 17 s16s y, 18 c128s d*",
    "dot": "1 lhs_contracting_dimensions i*, 2 rhs_contracting_dimensions i*, "
    "3 lhs_batch_dimensions i*, 4 rhs_batch_dimensions i*",
    "slice": "1 start i, 2 limit i, 3 stride i",
    "gather": "1 offset_dims i*, 2 collapsed_slice_dims i*, 3 start_index_map i*, "
    "4 index_vector_dim i",
    "scatter": "1 update_window_dims i*, 2 inserted_window_dims i*, "
    "3 scatter_dims_to_operand_dims i*, 4 index_vector_dim i",
    "convolution": "3 kernel_input_feature_dimension i, 4 kernel_output_feature_dimension i, "
    "6 kernel_spatial_dimensions i*, 7 input_batch_dimension i, 8 input_feature_dimension i, "
    "9 output_batch_dimension i, 10 output_feature_dimension i, 11 input_spatial_dimensions i*, "
    "12 output_spatial_dimensions i*",
    "window": "1 dimensions window_dimension*",
    "window_dimension": "1 size i, 2 stride i, 3 padding_low i, 4 padding_high i, "
    "5 window_dilation i, 6 base_dilation i, 7 window_reversal b",
    "padding": "1 dimensions padding_dimension*",
    "padding_dimension": "1 edge_padding_low i, 2 edge_padding_high i, 3 interior_padding i",
    "precisions": "1 operand_precision precision*",
    "attributes": "1 map pair*",
    "pair": "1 key s, 2 value s",
    "group": "1 replica_ids i*",
    "triangular": "1 left_side b, 2 lower b, 3 unit_diagonal b, 4 transpose_a transpose",
    "cholesky": "1 lower b",
    "sharding_of": "1 type sharding, 2 tile_shape shape, 3 tile_assignment_dimensions i*, "
    "4 tile_assignment_devices i*, 5 tuple_shardings sharding_of*, "
    "6 replicate_on_last_tile_dim b, 9 iota_reshape_dims i*, 10 iota_transpose_perm i*",
    "schedule": "",
    "aliases": "1 entries alias*",
    "alias": "1 output_shape_index i*, 2 parameter_number i, 3 parameter_shape_index i*",
}


def _fields(message: str) -> dict[int, tuple[str, str]]:
    entries = (entry.split() for entry in _MESSAGES[message].split(", ") if entry)
    return {int(number): (name, kind) for number, name, kind in entries}


_FIELDS = {message: _fields(message) for message in _MESSAGES}
_FIXED = {"f": "<f", "d": "<d"}
# A field: its name or number, its type without `*`, whether it is repeated, and its value, which
# of a message is a list of fields.
_Field = tuple[str, str, bool, Any]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _wire(data: memoryview) -> Iterator[tuple[int, int, Any]]:
    """Number, wire type and raw value of each field."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value: int | memoryview
            value, at = _varint(data, at)
        elif wire == 2:
            size, at = _varint(data, at)
            value, at = data[at : at + size], at + size
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        else:
            raise ValueError(f"hlo_proto: expected a serialized message, got wire type {wire}.")
        yield number, wire, value


def _number(value: int, kind: str) -> Any:
    if kind == "b":
        return bool(value)
    if kind in _ENUMS:
        names = _ENUMS[kind]
        return names[value] if value < len(names) else value
    return value - (1 << 64) if value >> 63 else value


def _packed(value: memoryview, kind: str) -> Iterator[Any]:
    """The values of a repeated field that stand behind each other."""
    if kind in _FIXED:
        yield from (x for (x,) in struct.iter_unpack(_FIXED[kind], value))
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield _number(number, kind)


def _decode(data: memoryview, message: str) -> list[_Field]:
    found: list[_Field] = []
    for number, wire, value in _wire(data):
        name, kind = _FIELDS[message].get(number, (str(number), "?"))
        repeated, kind = kind.endswith("*"), kind.removesuffix("*")
        if wire == 0:
            values = [_number(value, kind)]
        elif kind in _FIELDS:
            values = [_decode(value, kind)]
        elif kind in ("s", "y", "?"):
            values = [bytes(value)]
        else:
            values = list(_packed(value, kind))
        found += [(name, kind, repeated, v) for v in values]
    return found


def _quoted(value: bytes) -> str:
    escapes = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 39: "\\'", 92: "\\\\"}
    return '"' + "".join(
        escapes.get(c, chr(c) if 32 <= c < 127 else f"\\{c:03o}") for c in value
    ) + '"'  # fmt: skip


def _lines(fields: list[_Field], indent: str) -> Iterator[str]:
    for name, _, _, value in fields:
        if isinstance(value, list):
            yield f"{indent}{name} {{"
            yield from _lines(value, indent + "  ")
            yield indent + "}"
        else:
            shown = _quoted(value) if isinstance(value, bytes) else value
            shown = str(value).lower() if isinstance(value, bool) else shown
            yield f"{indent}{name}: {shown}"


def _camel(name: str) -> str:
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def _plain(value: Any, kind: str) -> Any:
    """A value as JSON has it: integers of 64 bits are texts there, bytes base64."""
    if isinstance(value, list):
        if kind == "attributes":
            pairs = (dict((n, v.decode()) for n, _, _, v in pair) for _, _, _, pair in value)
            return {"map": {pair.get("key", ""): pair.get("value", "") for pair in pairs}}
        return _object(value)
    if isinstance(value, bytes):
        return value.decode() if kind == "s" else base64.b64encode(value).decode()
    return str(value) if kind == "i" else value


def _object(fields: list[_Field]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, kind, repeated, value in fields:
        if kind == "?":
            continue
        if repeated:
            result.setdefault(_camel(name), []).append(_plain(value, kind))
        else:
            result[_camel(name)] = _plain(value, kind)
    return result


def text_of(module: bytes) -> str:
    """A serialized `HloModuleProto` in protobuf's text format."""
    return "".join(line + "\n" for line in _lines(_decode(memoryview(module), "module"), ""))


def json_of(module: bytes) -> str:
    """A serialized `HloModuleProto` as JSON, with protobuf's names."""
    return json.dumps(_object(_decode(memoryview(module), "module")), indent=1)


def renamed(module: bytes, name: str) -> bytes:
    """The same module by another name."""

    def varint(value: int) -> bytes:
        low = value & 0x7F
        return bytes([low]) if value < 0x80 else bytes([low | 0x80]) + varint(value >> 7)

    text = name.encode()
    rest = memoryview(module)
    if rest and rest[0] == 1 << 3 | 2:  # its name comes first
        size, at = _varint(rest, 1)
        rest = rest[at + size :]
    return b"\x0a" + varint(len(text)) + text + bytes(rest)
