#include "python/program_data.h"

#include <charconv>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include <pybind11/stl.h>

#include "hlo/generic.h"
#include "util/error.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using hlo::NamedText;

// Reads the integer at the start of `text` and takes it away; false where there is none.
bool take_number(std::string_view& text, int64_t& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(end - text.data());
  return true;
}

py::str str(std::string_view text) { return {text.data(), text.size()}; }

// (dims, dtype) of "tensor<2x3xf32>".
std::pair<py::tuple, py::str> type_of(std::string_view text) {
  constexpr std::string_view kTensor = "tensor<";
  if (!text.starts_with(kTensor)) return {py::tuple(), str(text)};
  text = text.substr(kTensor.size(), text.size() - kTensor.size() - 1);
  py::list dims;
  int64_t size = 0;
  for (std::string_view rest = text; take_number(rest, size) && rest.starts_with('x');) {
    rest.remove_prefix(1);
    dims.append(size);
    text = rest;
  }
  return {py::tuple(dims), str(text)};
}

int64_t number_of(std::string_view value) {
  int64_t number = 0;
  std::string_view digits = value.substr(1);
  TXLA_CHECK(value.starts_with('%') && take_number(digits, number) && digits.empty(),
             "stablehlo: expected a value such as %3, got ", value, ".");
  return number;
}

py::tuple value_of(std::string_view name, std::string_view type) {
  const auto [dims, dtype] = type_of(type);
  return py::make_tuple(number_of(name), dims, dtype);
}

// The text within the bracket that `text` begins with, or that stands behind its first word.
std::string_view inside(std::string_view text) {
  const size_t from = text.find_first_of("<[{");
  return text.substr(from + 1, hlo::end_of_bracket(text, from) - from - 2);
}

py::tuple list_of(std::string_view members);

// Integers, also those of "3 : i64" and of a scalar "dense<3> : tensor<i64>", and lists; the rest
// is text.
py::object attribute_of(std::string_view text) {
  int64_t number = 0;
  std::string_view rest = text;
  if (take_number(rest, number) && (rest.empty() || rest.starts_with(" : i"))) {
    return py::int_(number);
  }
  rest = text;
  if (rest.starts_with("dense<") && rest.ends_with(">") && rest.find("> : tensor<i") != rest.npos) {
    rest = inside(text);
    if (take_number(rest, number) && rest.empty()) return py::int_(number);
  }
  if (text.starts_with("array<")) {
    const std::string_view typed = inside(text);
    const size_t colon = typed.find(':');
    return list_of(colon == typed.npos ? std::string_view() : typed.substr(colon + 1));
  }
  if (text.starts_with('[')) return list_of(inside(text));
  // Lists the axes of each dimension, in braces.
  if (text.starts_with("#sdy.sharding<")) {
    const std::vector<std::string_view> parts = hlo::members_of(inside(text));
    return list_of(inside(parts.at(1)));
  }
  return str(text);
}

py::tuple list_of(std::string_view members) {
  py::list all;
  for (const std::string_view member : hlo::members_of(members)) all.append(attribute_of(member));
  return py::tuple(all);
}

void add_attributes(py::dict& into, const std::vector<NamedText>& attributes) {
  for (const NamedText& a : attributes) {
    if (a.text.starts_with("#stablehlo.") && a.text.find(" = ") != a.text.npos) {
      add_attributes(into, hlo::entries_of(inside(a.text)));
    } else {
      into[str(a.name)] = attribute_of(a.text);
    }
  }
}

py::tuple block_of(const hlo::Block& block);

py::tuple operation_of(const hlo::Operation& o) {
  py::list operands, results, regions;
  for (const std::string_view operand : o.operands) operands.append(number_of(operand));
  for (size_t i = 0; i < o.results.size(); ++i) {
    results.append(value_of(o.results[i], o.result_types.at(i)));
  }
  for (const hlo::Block& region : o.regions) regions.append(block_of(region));
  py::dict attributes;
  add_attributes(attributes, o.attributes);
  return py::make_tuple(str(o.name), py::tuple(operands), py::tuple(results), attributes,
                        py::tuple(regions));
}

py::tuple block_of(const hlo::Block& block) {
  py::list arguments, operations;
  for (const NamedText& a : block.arguments) arguments.append(value_of(a.name, a.text));
  for (const hlo::Operation& o : block.operations) operations.append(operation_of(o));
  return py::make_tuple(py::tuple(arguments), py::tuple(operations));
}

// (names, sizes, devices) of `["a"=2, "b"=4], device_ids=[3, 1, ..]`.
py::tuple mesh_of(std::string_view text) {
  std::vector<std::string> names;
  std::vector<int64_t> sizes, devices;
  const std::vector<std::string_view> parts = hlo::members_of(text);
  for (const NamedText& axis : hlo::entries_of(inside(parts.at(0)))) {
    names.emplace_back(axis.name.substr(1, axis.name.size() - 2));
    std::string_view size = axis.text;
    TXLA_CHECK(take_number(size, sizes.emplace_back()), "stablehlo: expected a mesh, got ", text);
  }
  if (parts.size() > 1) {
    for (std::string_view id : hlo::members_of(inside(parts[1]))) {
      TXLA_CHECK(take_number(id, devices.emplace_back()), "stablehlo: expected a mesh, got ", text);
    }
  } else {
    devices.resize(std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()));
    std::iota(devices.begin(), devices.end(), 0);
  }
  return py::make_tuple(py::tuple(py::cast(names)), py::tuple(py::cast(sizes)), devices);
}

}  // namespace

py::dict read_program(const std::string& text) {
  py::dict program, functions;
  program["mesh"] = py::none();
  constexpr std::string_view kMesh = "\n  sdy.mesh @mesh = ";
  if (const size_t at = text.find(kMesh); at != text.npos) {
    program["mesh"] = mesh_of(inside(std::string_view(text).substr(at + kMesh.size())));
  }
  for (std::string_view rest = text; !rest.empty();) {
    if (rest.starts_with("  func.func ")) {
      const hlo::FunctionText f = hlo::read_function(rest);
      functions[str(f.symbol.substr(1))] = block_of(f.body);
      continue;
    }
    // Functions from elsewhere are not of this form.
    const std::string_view end = rest.starts_with("func.func ") ? "\n}\n" : "\n";
    const size_t at = rest.find(end);
    rest.remove_prefix(at == rest.npos ? rest.size() : at + end.size());
  }
  program["functions"] = functions;
  return program;
}

}  // namespace torch_xla::python
