"""The messages of profiles, as TensorBoard's profile plugin and `xprof` know them.

They are made of the tables below by the package `protobuf`. Numbers and types are those of
`tsl/profiler/protobuf` in the OpenXLA project (xplane.proto, profiler_service.proto,
profiler_options.proto); fields that nothing here reads or writes are left out.
"""

from __future__ import annotations

import functools
from types import SimpleNamespace
from typing import Any

_XPLANE = """
XSpace: 1 planes *XPlane, 2 errors *string, 3 warnings *string, 4 hostnames *string
XPlane: 1 id int64, 2 name string, 3 lines *XLine, 4 event_metadata {XEventMetadata},
  5 stat_metadata {XStatMetadata}, 6 stats *XStat
XLine: 1 id int64, 10 display_id int64, 2 name string, 11 display_name string,
  3 timestamp_ns int64, 9 duration_ps int64, 4 events *XEvent
XEvent: 1 metadata_id int64, 2 offset_ps int64, 3 duration_ps int64, 4 stats *XStat
XStat: 1 metadata_id int64, 2 double_value double, 3 uint64_value uint64, 4 int64_value int64,
  5 str_value string, 7 ref_value uint64
XEventMetadata: 1 id int64, 2 name string, 4 display_name string
XStatMetadata: 1 id int64, 2 name string
"""

_SERVICE = """
ProfileOptions: 2 host_tracer_level uint32, 3 device_tracer_level uint32,
  4 python_tracer_level uint32, 5 version uint32, 7 enable_hlo_proto bool, 9 duration_ms uint64,
  15 override_hostname string
ProfileRequest: 1 duration_ms uint64, 3 tools *string, 4 opts ProfileOptions,
  5 repository_root string, 6 session_id string, 7 host_name string, 9 emit_xspace bool
ProfileResponse: 7 empty_trace bool, 8 xspace XSpace
TerminateRequest: 1 session_id string
TerminateResponse:
MonitorRequest: 1 duration_ms uint64, 2 monitoring_level int32, 3 timestamp bool
MonitorResponse: 1 data string
"""


@functools.cache
def messages() -> SimpleNamespace:
    """The message classes, by name.

    Raises:
        ImportError: The package `protobuf` is not there.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as e:
        raise ImportError(
            "torch_xla.debug.profiler: expected the package protobuf, which writes profiles. "
            "Install it with `pip install torch_xla[profiler]`."
        ) from e
    file = descriptor_pb2.FileDescriptorProto(name="torch_xla/profile.proto", syntax="proto3")
    file.package = "torch_xla.profile"
    for row in filter(None, (_XPLANE + _SERVICE).replace(",\n ", ",").splitlines()):
        name, _, fields = row.partition(":")
        message = file.message_type.add(name=name)
        for field in filter(None, (text.strip() for text in fields.split(","))):
            _add_field(message, *field.split())
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return SimpleNamespace(
        **{
            m.name: message_factory.GetMessageClass(
                pool.FindMessageTypeByName(f"{file.package}.{m.name}")
            )
            for m in file.message_type
        }
    )


def _add_field(message: Any, number: str, name: str, type_: str) -> None:
    """`*T` is a list of T, `{T}` a map from int64 to it."""
    field = message.field.add(name=name, number=int(number))
    field.label = field.LABEL_REPEATED if type_[0] in "*{" else field.LABEL_OPTIONAL
    if type_.startswith("{"):
        entry = message.nested_type.add(name=name.title().replace("_", "") + "Entry")
        entry.options.map_entry = True
        _add_field(entry, "1", "key", "int64")
        _add_field(entry, "2", "value", type_.strip("{}"))
        type_ = f"{message.name}.{entry.name}"
    type_ = type_.lstrip("*")
    if type_.islower():
        field.type = getattr(field, f"TYPE_{type_.upper()}")
    else:
        field.type = field.TYPE_MESSAGE
        field.type_name = f".torch_xla.profile.{type_}"
