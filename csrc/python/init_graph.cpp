// The recorded graph as text: IR, StableHLO, HLO, Graphviz, and its hash.
#include <functional>
#include <unordered_map>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "executor/graph.h"
#include "executor/hlo_dump.h"
#include "executor/runtime.h"
#include "executor/sync.h"
#include "lazy/operator.h"
#include "lazy/tensor.h"
#include "python/init.h"
#include "python/values.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using Tensors = std::vector<at::Tensor>;

// Of everything that waits on the current device where no tensors are named.
std::string stablehlo(const Tensors& tensors, const std::string& platform) {
  int device = executor::current_device();
  const lazy::GraphLock lock;
  std::vector<lazy::Value> values = values_of(tensors, "get_stablehlo", &device);
  if (tensors.empty()) {
    lazy::Storage::for_each_pending(device, [&](lazy::Storage& s) { values.push_back(s.value()); });
  }
  return executor::stablehlo_of(values, device, platform);
}

executor::HloDump hlo(const Tensors& tensors) {
  int device = executor::current_device();
  values_of(tensors, "_get_xla_tensors_hlo", &device);
  return executor::hlo_of(stablehlo(tensors, ""), device);
}

// The hash of the graph that computes these tensors, as the debugging tools print it.
py::bytes graph_hash(const Tensors& tensors) {
  int device = 0;
  const lazy::GraphLock lock;
  const std::vector<lazy::Value> values = values_of(tensors, "get_graph_hash", &device);
  return executor::graph_hash_of(values, device).hex();
}

using Numbers = std::unordered_map<const lazy::Node*, size_t>;

// Visits each node under the values once, operands before users; they are numbered in that order.
Numbers number_nodes(const std::vector<lazy::Value>& values,
                     const std::function<void(const lazy::Node&, const Numbers&)>& visit) {
  Numbers numbers;
  std::vector<std::pair<const lazy::Node*, size_t>> stack;
  for (const lazy::Value& root : values) {
    if (numbers.count(root.node.get()) == 0) stack.emplace_back(root.node.get(), 0);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->operands().size()) {
        const lazy::Node* operand = node->operands()[next++].node.get();
        if (numbers.count(operand) == 0) stack.emplace_back(operand, 0);
        continue;
      }
      const lazy::Node* done = node;
      stack.pop_back();
      if (numbers.emplace(done, numbers.size()).second) visit(*done, numbers);
    }
  }
  return numbers;
}

std::string name_of(const lazy::Node& node) {
  return node.is_data() ? "xla::device_data" : node.signature().op->name;
}

// "Float[2,3], Long[2]"; "none" for a result that the call does not give.
std::string types_of(const lazy::Node& node) {
  std::string text;
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    if (i != 0) text += ", ";
    if (!node.is_data() && node.signature().outputs[i] == nullptr) {
      text += "none";
      continue;
    }
    const lazy::Geometry& geometry = node.output(i);
    text += c10::toString(geometry.dtype);
    text += "[";
    const char* comma = "";
    for (const int64_t size : geometry.sizes) {
      text += comma + std::to_string(size);
      comma = ",";
    }
    text += "]";
  }
  return text;
}

// One line per node: `%2 = aten::add.Tensor(%0, %1) : Float[2,3]`.
std::string text_of(const std::vector<lazy::Value>& values) {
  std::string text = "IR {\n";
  const Numbers all = number_nodes(values, [&](const lazy::Node& node, const Numbers& numbers) {
    text += "  %" + std::to_string(numbers.at(&node)) + " = " + name_of(node) + "(";
    const char* comma = "";
    for (const lazy::Value& v : node.operands()) {
      text += comma + ("%" + std::to_string(numbers.at(v.node.get())));
      if (v.index != 0) text += "." + std::to_string(v.index);
      comma = ", ";
    }
    text += ") : " + types_of(node);
    const char* between = "  // ";
    for (const lazy::SourceFrame& frame : node.source().frames()) {
      text += between + frame.str();
      between = " < ";
    }
    text += "\n";
  });
  for (const lazy::Value& root : values) {
    text += "  ROOT %" + std::to_string(all.at(root.node.get())) + "\n";
  }
  return text + "}\n";
}

std::string graph_text(const Tensors& tensors) {
  int device = 0;
  const lazy::GraphLock lock;
  return text_of(values_of(tensors, "_get_xla_tensors_text", &device));
}

// For Graphviz; roots have a double border.
std::string graph_dot(const Tensors& tensors) {
  int device = 0;
  const lazy::GraphLock lock;
  const std::vector<lazy::Value> values = values_of(tensors, "_get_xla_tensors_dot", &device);
  std::string text = "digraph G {\n";
  const Numbers all = number_nodes(values, [&](const lazy::Node& node, const Numbers& numbers) {
    const std::string number = std::to_string(numbers.at(&node));
    text += "  node" + number + " [label=\"" + name_of(node) + "\\n" + types_of(node) + "\"]\n";
    for (size_t i = 0; i < node.operands().size(); ++i) {
      const lazy::Value& v = node.operands()[i];
      text += "  node" + std::to_string(numbers.at(v.node.get())) + " -> node" + number;
      text += " [label=\"" + std::to_string(i);
      if (v.index != 0) text += " (result " + std::to_string(v.index) + ")";
      text += "\"]\n";
    }
  });
  for (const lazy::Value& root : values) {
    text += "  node" + std::to_string(all.at(root.node.get())) + " [peripheries=2]\n";
  }
  return text + "}\n";
}

// The graphs of the tensors that wait on a device and have at least so many nodes.
std::string tensors_report(size_t nodes_threshold, const std::string& device) {
  std::string report;
  const lazy::GraphLock lock;
  lazy::Storage::for_each_pending(device_index(device), [&](lazy::Storage& storage) {
    const std::vector<lazy::Value> value = {storage.value()};
    const size_t nodes = number_nodes(value, [](const lazy::Node&, const Numbers&) {}).size();
    if (nodes < nodes_threshold) return;
    report += std::to_string(nodes) + " nodes:\n" + text_of(value);
  });
  return report;
}

}  // namespace

void init_graph(py::module_& m) {
  m.def("_get_xla_tensors_text", &graph_text);
  m.def("_get_xla_tensors_dot", &graph_dot);
  // The compiler's own text, of the program before its optimizations; and as an xla.HloModuleProto.
  m.def("_get_xla_tensors_hlo", [](const Tensors& tensors) { return hlo(tensors).text; });
  m.def("_get_xla_tensors_hlo_proto",
        [](const Tensors& tensors) { return py::bytes(hlo(tensors).module); });
  m.def("_get_stablehlo", &stablehlo, py::arg("tensors"), py::arg("platform") = "");
  m.def("_get_graph_hash", &graph_hash);
  m.def("_get_xla_handle_special_scalars", [] {
    const lazy::GraphLock lock;
    return executor::constant_numbers().zero_and_one;
  });
  m.def("_set_xla_handle_special_scalars", [](bool enable) {
    const lazy::GraphLock lock;
    executor::constant_numbers().zero_and_one = enable;
  });
  m.def("_get_xla_all_numbers_special_scalars", [] {
    const lazy::GraphLock lock;
    return executor::constant_numbers().all;
  });
  m.def("_set_xla_all_numbers_special_scalars", [](bool enable) {
    const lazy::GraphLock lock;
    executor::constant_numbers().all = enable;
  });
  m.def("_xla_tensors_report", &tensors_report, py::arg("nodes_threshold") = 100,
        py::arg("device") = "");
}

}  // namespace torch_xla::python
