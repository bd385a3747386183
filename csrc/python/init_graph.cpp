// The recorded graph as text: IR, StableHLO, HLO, Graphviz, and its hash.
#include <unordered_map>
#include <unordered_set>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "executor/compile/auto_sharding.h"
#include "executor/compile/compile.h"
#include "executor/compile/graph.h"
#include "executor/insight/hlo_dump.h"
#include "executor/program/pieces.h"
#include "executor/run/array_types.h"
#include "executor/run/live_data.h"
#include "executor/run/offers.h"
#include "executor/run/runtime.h"
#include "executor/step/sync.h"
#include "lazy/function.h"
#include "lazy/print.h"
#include "lazy/tensor.h"
#include "python/init.h"
#include "python/settled.h"
#include "python/values.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using Tensors = std::vector<at::Tensor>;

// For everything that waits on the current device where no tensors are named.
std::string stablehlo(const Tensors& tensors, const std::string& platform) {
  int device = executor::current_device();
  const lazy::GraphLock lock;
  return executor::stablehlo_of(values_or_pending(tensors, "get_stablehlo", &device), device,
                                platform);
}

executor::HloDump hlo(const Tensors& tensors) {
  int device = executor::current_device();
  present_values(tensors, "_get_xla_tensors_hlo", &device);
  return executor::hlo_of(stablehlo(tensors, ""), device);
}

// Tensors of the data that the graph of these reads, in the order of its program's parameters.
Tensors graph_leaves(const Tensors& tensors) {
  int device = executor::current_device();
  const lazy::GraphLock lock;
  std::vector<lazy::Value> pending = present_values(tensors, "_graph_leaves", &device);
  std::erase_if(pending, [](const lazy::Value& v) { return v.node->is_data(); });
  const executor::Graph graph(std::move(pending), device);
  Tensors leaves;
  for (const lazy::Node* leaf : graph.parameters) {
    auto node = c10::intrusive_ptr<lazy::Node>::reclaim_copy(const_cast<lazy::Node*>(leaf));
    const lazy::Geometry* geometry = &leaf->output(0);
    leaves.push_back(lazy::make_tensor({std::move(node), 0}, geometry, device));
  }
  return leaves;
}

// The places of these leaves among graph_leaves(), in the order in which torch_xla 2.9 takes them:
// of each call, those of its last operand first.
std::vector<uint32_t> leaves_last_first(const Tensors& tensors) {
  int device = executor::current_device();
  const lazy::GraphLock lock;
  std::vector<lazy::Value> pending = present_values(tensors, "_graph_leaves_last_first", &device);
  std::erase_if(pending, [](const lazy::Value& v) { return v.node->is_data(); });
  const executor::Graph graph(pending, device);
  std::unordered_map<const lazy::Node*, uint32_t> place;
  for (const lazy::Node* leaf : graph.parameters) {
    place.emplace(leaf, static_cast<uint32_t>(place.size()));
  }
  std::vector<uint32_t> order;
  std::unordered_set<const lazy::Node*> seen;
  for (const lazy::Value& root : pending) {
    std::vector<const lazy::Node*> stack = {root.node.get()};
    while (!stack.empty()) {
      const lazy::Node* node = stack.back();
      stack.pop_back();
      if (!seen.insert(node).second) continue;
      if (node->is_data()) order.push_back(place.at(node));
      for (const lazy::Value& v : node->operands()) stack.push_back(v.node.get());
    }
  }
  return order;
}

// Takes their values from the storages of a device that wait, so that no sync computes them.
void clear_pending(const std::string& device) {
  const int index = device_index(device);
  const lazy::GraphLock lock;
  lazy::Storage::for_each_pending(index, [&](lazy::Storage& storage) {
    if (storage.value().node->is_data()) return;  // a barrier has seen to it
    storage.set_value(lazy::placeholder(storage.geometry(), index));
  });
}

// The hash of the graph that computes these tensors, as the debugging tools print it. Where its
// split is chosen, or is to be along a mesh that the environment names, this is a part of it.
py::bytes graph_hash(const Tensors& tensors, const std::string& mesh) {
  int device = 0;
  const lazy::GraphLock lock;
  const std::vector<lazy::Value> values = present_values(tensors, "get_graph_hash", &device);
  util::Hash128 hash = executor::graph_hash_of(values, device, executor::reads_take_offers());
  if (!mesh.empty() || executor::has_split_planner()) {
    util::Hasher whole;
    whole.add(hash).add(executor::has_split_planner()).add_bytes(mesh);
    hash = whole.finish();
  }
  return hash.hex();
}

// The operator that a tensor waits for, and the dtype and sizes of each of its results; None where
// it has data.
py::object call_of(const at::Tensor& tensor) {
  int device = 0;
  const lazy::GraphLock lock;
  const lazy::Value value = present_values({tensor}, "_xla_call_of", &device)[0];
  if (value.node->is_data()) return py::none();
  py::list results;
  for (const lazy::Geometry* g : value.node->signature().outputs) {
    if (g != nullptr) results.append(py::make_tuple(g->dtype, py::tuple(py::cast(g->sizes))));
  }
  return py::make_tuple(value.node->signature().op->name, results);
}

std::string graph_text(const Tensors& tensors) {
  int device = 0;
  const lazy::GraphLock lock;
  return lazy::text_of(present_values(tensors, "_get_xla_tensors_text", &device));
}

std::string graph_dot(const Tensors& tensors) {
  int device = 0;
  const lazy::GraphLock lock;
  return lazy::dot_of(present_values(tensors, "_get_xla_tensors_dot", &device));
}

// Puts the call that makes a tensor into a scope, with which its op_name in HLO then begins; false
// where nothing waits. Its line is the innermost of the user's in any case: `depth` is not used.
bool set_scope_of(const at::Tensor& tensor, const std::string& prefix, size_t /*depth*/) {
  int device = 0;
  const lazy::GraphLock lock;
  const lazy::Value value = present_values({tensor}, "_set_xla_custom_op_name_prefix", &device)[0];
  if (value.node->is_data()) return false;
  value.node->source().scope = lazy::scope_number(prefix);
  return true;
}

// Describes a tensor as PyTorch/XLA does. Its line, or with XLA_IR_DEBUG its stack, is where
// the value was recorded or brought to the device.
std::string tensor_report(size_t id, int device, const std::string& shape, size_t nodes,
                          const lazy::Source& source, const std::string& text) {
  const std::string name =
      executor::is_spmd() ? "SPMD:0"
                          : real_device_name(executor::Runtime::get().devices(device).mine.front());
  std::string report = "Tensor: id=" + std::to_string(id) + ", shape=" + shape +
                       ", device=" + name + ", ir_nodes=" + std::to_string(nodes) + "\n";
  const lazy::SourceFrames frames = source.frames();
  if (!frames.empty()) report += "Frames:\n";
  for (const lazy::SourceFrame& frame : frames) report += "  " + frame.short_str() + "\n";
  return report + text + "\n";
}

// The graphs of at least so many nodes: of tensors that have data, which are one, and that wait.
std::string tensors_report(size_t nodes_threshold, const std::string& device) {
  const int index = device_index(device);
  std::string report;
  const lazy::GraphLock lock;
  size_t id = 0;
  for (const executor::LiveData& data : executor::live_data()) {
    if (data.device != index || ++id == 0 || nodes_threshold > 1) continue;
    report += tensor_report(id, index, data.shape, 1, data.maker,
                            "IR {\n  %0 = xla::device_data() : " + data.type + "\n  ROOT %0\n}\n");
  }
  lazy::Storage::for_each_pending(index, [&](lazy::Storage& storage) {
    const std::vector<lazy::Value> value = {storage.value()};
    if (value[0].node->is_data()) return;
    ++id;
    const size_t nodes = lazy::count_nodes(value);
    if (nodes < nodes_threshold) return;
    report += tensor_report(id, index, executor::xla_shape(value[0].geometry()), nodes,
                            value[0].node->source(), lazy::text_of(value));
  });
  return report;
}

// The facts that are kept of each compiled program, the most recently used first.
std::vector<py::dict> programs() {
  std::vector<py::dict> all;
  for (const auto& program : executor::cached_programs()) {
    const executor::Interface& takes = program->interface;
    std::vector<std::string> parameters;
    std::vector<std::optional<int>> reused_by;
    for (const executor::Parameter& p : takes.parameters) {
      parameters.push_back(lazy::types_of({p.geometry}));
      const bool reused = program->reuses_buffers && p.reused_by >= 0;
      reused_by.push_back(reused ? std::optional<int>(p.reused_by) : std::nullopt);
    }
    std::vector<std::string> results;
    for (const lazy::Geometry* g : program->results) results.push_back(lazy::types_of({g}));
    std::vector<uint32_t> pieces;  // the executable of each
    if (program->plan) {
      for (const executor::Piece& piece : program->plan->pieces) pieces.push_back(piece.executable);
    }
    using py::literals::operator""_a;
    all.push_back(py::dict("name"_a = program->name, "key"_a = program->key.hex(),
                           "parameters"_a = parameters, "reused_by"_a = reused_by,
                           "numbers"_a = takes.num_floats + takes.num_ints, "results"_a = results,
                           "can_fail"_a = program->can_fail, "calls"_a = program->function.lines(),
                           "pieces"_a = pieces));
  }
  return all;
}

}  // namespace

void init_graph(py::module_& m) {
  m.def("_xla_programs", settled(&programs));
  m.def("_xla_call_of", &call_of);
  m.def("_get_xla_tensors_text", &graph_text);
  m.def("_get_xla_tensors_dot", &graph_dot);
  m.def("_set_xla_custom_op_name_prefix", &set_scope_of, py::arg("tensor"), py::arg("prefix"),
        py::arg("max_call_stack_depth") = 0);
  // The compiler's own text, of the program before its optimizations; and as an xla.HloModuleProto.
  m.def("_get_xla_tensors_hlo", [](const Tensors& tensors) { return hlo(tensors).text; });
  m.def("_get_xla_tensors_hlo_proto",
        [](const Tensors& tensors) { return py::bytes(hlo(tensors).module); });
  m.def("_graph_leaves", &graph_leaves);
  m.def("_graph_leaves_last_first", &leaves_last_first);
  m.def("_clear_pending_irs", &clear_pending);
  m.def("_get_stablehlo", &stablehlo, py::arg("tensors"), py::arg("platform") = "");
  m.def("_stablehlo_of_sync", [](const std::string& platform) {
    return executor::stablehlo_of_sync(executor::current_device(), platform);
  });
  m.def("_lower_also_for", &executor::lower_also_for);
  // For each: its name, and its text or why it has none.
  m.def("_take_also_lowered", [] {
    py::list all;
    for (const executor::Elsewhere& program : executor::take_also_lowered()) {
      all.append(py::make_tuple(program.name, program.text, program.refusal));
    }
    return all;
  });
  m.def("_xla_graph_hash", &graph_hash);
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
  m.def("_xla_set_piece_limits",
        [](size_t shortest, size_t fewest, int64_t elements, size_t saved) {
          const lazy::GraphLock lock;
          executor::piece_limits() = {{shortest, fewest, elements}, saved};
        });
  m.def("_xla_tensors_report", &tensors_report, py::arg("nodes_threshold") = 100,
        py::arg("device") = "");
}

}  // namespace torch_xla::python
