// The table of environment flags, for Python and for docs/flags.md.
#include <string_view>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "util/error.h"
#include "util/flags.h"
#include "util/signal_stack.h"

namespace py = pybind11;

namespace torch_xla::python {

namespace {

const char* type_name(util::FlagType type) {
  switch (type) {
    case util::FlagType::Bool:
      return "bool";
    case util::FlagType::Int:
      return "int";
    case util::FlagType::String:
    case util::FlagType::OptionalString:
      return "string";
  }
  return "unknown";
}

py::list flag_table() {
  py::list table;
  for (const util::FlagInfo& info : util::flags::kTable) {
    py::dict row;
    row["name"] = info.name;
    row["type"] = type_name(info.type);
    row["default"] = info.default_text;
    row["in_cache_key"] = info.in_cache_key;
    row["help"] = info.help;
    table.append(row);
  }
  return table;
}

// The value that the environment gives to a flag now.
py::object flag_value(std::string_view name) {
  for (const util::FlagInfo& info : util::flags::kTable) {
    if (name == info.name) {
      switch (info.type) {
        case util::FlagType::Bool:
          return py::bool_(util::flags::read_Bool(info));
        case util::FlagType::Int:
          return py::int_(util::flags::read_Int(info));
        case util::FlagType::String:
          return py::str(util::flags::read_String(info));
        case util::FlagType::OptionalString:
          return py::cast(util::flags::read_OptionalString(info));
      }
    }
  }
  throw py::key_error(
      util::concat(name, ": expected a flag of csrc/util/flags.h. Declare it there."));
}

}  // namespace

void init_flags(py::module_& m) {
  m.def("_xla_flags", &flag_table);
  m.def("_xla_flag", &flag_value, py::arg("name"));
  m.def("_xla_widen_signal_stack", &util::widen_signal_stack);
}

}  // namespace torch_xla::python
