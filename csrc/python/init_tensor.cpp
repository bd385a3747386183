// Tensors: values to the host, graph text, identity.
#include <algorithm>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch/fallback.h"
#include "executor/external_memory.h"
#include "executor/sync.h"
#include "executor/transfer.h"
#include "lazy/operator.h"
#include "lazy/tensor.h"
#include "python/init.h"
#include "util/error.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

lazy::TensorImpl& lazy_impl(const at::Tensor& t, const char* what) {
  lazy::TensorImpl* impl = lazy::as_lazy(t);
  TXLA_CHECK_KIND(util::ErrorKind::Type, impl != nullptr, what,
                  ": expected an xla tensor, got one on ", t.device().str(),
                  ". Move it with .to('xla').");
  return *impl;
}

std::vector<lazy::Value> values_of(const std::vector<at::Tensor>& tensors, const char* what,
                                   int* device) {
  std::vector<lazy::Value> values;
  const lazy::GraphLock lock;
  for (const at::Tensor& t : tensors) {
    lazy::TensorImpl& impl = lazy_impl(t, what);
    *device = impl.device_index();
    values.push_back(impl.read());
  }
  return values;
}

// A tensor of PyTorch's own over the memory of an xla tensor.
at::Tensor lend(const at::Tensor& tensor) {
  int device = 0;
  const std::vector<lazy::Value> read = values_of({tensor}, "to_dlpack", &device);
  lazy::Value value = read[0];
  at::Tensor lent = executor::lend(value, device);
  const lazy::GraphLock lock;
  lazy_impl(tensor, "to_dlpack").computed(read[0], value);
  return lent;
}

at::Tensor borrow(const at::Tensor& tensor, const std::string& device) {
  const int index = device_index(device);
  lazy::Value value = executor::borrow(tensor, index);
  const lazy::Geometry* geometry = &value.geometry();
  return lazy::make_tensor(std::move(value), geometry, index);
}

std::vector<std::pair<std::string, at::Tensor>> local_shards(const at::Tensor& tensor) {
  int device = 0;
  std::vector<lazy::Value> values = values_of({tensor}, "_xla_local_shards", &device);
  std::vector<std::pair<std::string, at::Tensor>> shards;
  for (auto& [real, data] : executor::download_shards(std::move(values[0]), device)) {
    shards.emplace_back(real_device_name(real), std::move(data));
  }
  return shards;
}

std::string stablehlo(std::vector<at::Tensor> tensors, const std::string& platform) {
  int device = 0;
  const lazy::GraphLock lock;
  std::vector<lazy::Value> values = values_of(tensors, "get_stablehlo", &device);
  if (tensors.empty()) {
    lazy::Storage::for_each_pending(device, [&](lazy::Storage& s) { values.push_back(s.value()); });
  }
  return executor::stablehlo_of(values, device, platform);
}

// The hash of the graph that computes these tensors, as the debugging tools print it.
py::bytes graph_hash(const std::vector<at::Tensor>& tensors) {
  int device = 0;
  const lazy::GraphLock lock;
  const std::vector<lazy::Value> values = values_of(tensors, "get_graph_hash", &device);
  return executor::graph_hash_of(values, device).hex();
}

// One line per node, operands before users: `%2 = aten::add.Tensor(%0, %1) : f32[2,3]`.
std::string graph_text(const std::vector<at::Tensor>& tensors) {
  int device = 0;
  const lazy::GraphLock lock;
  std::vector<lazy::Value> values = values_of(tensors, "_get_xla_tensors_text", &device);
  std::unordered_map<const lazy::Node*, size_t> numbers;
  std::string text = "IR {\n";
  std::vector<std::pair<const lazy::Node*, size_t>> stack;
  const auto print = [&](const lazy::Node* node) {
    const size_t number = numbers.size();
    numbers[node] = number;
    text += "  %" + std::to_string(number) + " = ";
    text += node->is_data() ? "xla::device_data" : node->signature().op->name;
    text += "(";
    for (size_t i = 0; i < node->operands().size(); ++i) {
      const lazy::Value& v = node->operands()[i];
      if (i != 0) text += ", ";
      text += "%" + std::to_string(numbers.at(v.node.get()));
      if (v.index != 0) text += "." + std::to_string(v.index);
    }
    text += ") :";
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      text += i == 0 ? " " : ", ";
      text += c10::toString(node->output(i).dtype);
      text += "[";
      const auto& sizes = node->output(i).sizes;
      for (size_t d = 0; d < sizes.size(); ++d)
        text += (d == 0 ? "" : ",") + std::to_string(sizes[d]);
      text += "]";
    }
    if (node->source() != nullptr) {
      const char* between = "  // ";
      for (const util::SourceFrame& frame : *node->source()) {
        text += between + frame.str();
        between = " < ";
      }
    }
    text += "\n";
  };
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
      if (numbers.count(done) == 0) print(done);
    }
  }
  for (const lazy::Value& root : values) {
    text += "  ROOT %" + std::to_string(numbers.at(root.node.get())) + "\n";
  }
  return text + "}\n";
}

}  // namespace

void init_tensor(py::module_& m) {
  m.def("_xla_get_cpu_tensors", [](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& t : tensors) lazy_impl(t, "_xla_get_cpu_tensors");
    return dispatch::fetch(tensors);
  });
  m.def(
      "_xla_sync_multi",
      [](const std::vector<at::Tensor>& tensors, const std::vector<std::string>&, bool wait, bool) {
        int device = 0;
        std::vector<lazy::Value> values = values_of(tensors, "_xla_sync_multi", &device);
        executor::materialize(values, device);
        if (wait) executor::wait_device(device);
      },
      py::arg("tensors"), py::arg("devices") = std::vector<std::string>(), py::arg("wait") = true,
      py::arg("sync_xla_data") = true);
  // Tensors that share a storage share this id; it is never 0.
  m.def("_xla_get_tensor_id", [](const at::Tensor& t) {
    return reinterpret_cast<uintptr_t>(&lazy_impl(t, "_xla_get_tensor_id").lazy_storage());
  });
  m.def("_get_xla_tensors_text", &graph_text);
  m.def("_get_xla_tensors_hlo", &stablehlo, py::arg("tensors"), py::arg("platform") = "");
  m.def("_get_stablehlo", &stablehlo, py::arg("tensors"), py::arg("platform") = "");
  m.def("_get_graph_hash", &graph_hash);
  m.def(
      "_xla_live_storages",
      [](const std::string& device) { return lazy::Storage::live_count(device_index(device)); },
      py::arg("device") = "");
  m.def("_xla_lend", &lend);
  m.def("_xla_borrow", &borrow, py::arg("tensor"), py::arg("device") = "");
  // What each real device holds of a tensor, by the device's name.
  m.def("_xla_local_shards", &local_shards);
}

}  // namespace torch_xla::python
