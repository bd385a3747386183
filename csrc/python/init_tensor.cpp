// Tensors: values to the host, memory that is shared, identity.
#include <pybind11/stl.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch/calls/computed_views.h"
#include "dispatch/record/fallback.h"
#include "dispatch/views/resize.h"
#include "executor/run/offers.h"
#include "executor/step/external_memory.h"
#include "executor/step/read.h"
#include "executor/step/sync.h"
#include "lazy/tensor.h"
#include "ops/dtypes.h"
#include "python/init.h"
#include "python/values.h"
#include "util/error.h"

namespace py = pybind11;

namespace torch_xla::python {
std::vector<lazy::Value> present_values(const std::vector<at::Tensor>& tensors, const char* what,
                                        int* device) {
  std::vector<lazy::Value> values;
  const lazy::GraphLock lock;
  for (const at::Tensor& t : tensors) {
    lazy::TensorImpl& impl = lazy::expect_lazy(t, what);
    *device = impl.device_index();
    values.push_back(impl.read());
  }
  return values;
}

std::vector<lazy::Value> values_or_pending(const std::vector<at::Tensor>& tensors, const char* what,
                                           int* device) {
  std::vector<lazy::Value> values = present_values(tensors, what, device);
  if (tensors.empty()) {
    lazy::Storage::for_each_pending(*device, [&](lazy::Storage& storage) {
      if (!storage.value().node->is_data()) values.push_back(storage.value());
    });
  }
  return values;
}

namespace {

// A tensor of PyTorch's own over the memory of an xla tensor.
at::Tensor lend(const at::Tensor& tensor) {
  int device = 0;
  const std::vector<lazy::Value> read = present_values({tensor}, "to_dlpack", &device);
  lazy::Value value = read[0];
  at::Tensor lent = executor::lend(value, device);
  const lazy::GraphLock lock;
  lazy::expect_lazy(tensor, "to_dlpack").computed(read[0], value);
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
  std::vector<lazy::Value> values = present_values({tensor}, "_xla_local_shards", &device);
  std::vector<std::pair<std::string, at::Tensor>> shards;
  for (auto& [real, data] : executor::download_shards(std::move(values[0]), device)) {
    shards.emplace_back(real_device_name(real), std::move(data));
  }
  return shards;
}

lazy::Value offered_value(const at::Tensor& tensor) {
  const lazy::TensorImpl* impl = lazy::as_lazy(tensor);
  TXLA_CHECK(impl != nullptr, "buffer donation: expected an xla tensor, got one on ",
             tensor.device().str(), ". Move it with .to('xla').");
  return impl->read();
}

// The data of a tensor and the graph that waits for it, by name: equal for tensors that would
// give the same value.
std::string unique_id(const at::Tensor& tensor) {
  const lazy::GraphLock lock;
  lazy::TensorImpl& impl = lazy::expect_lazy(tensor, "_unique_id_for_ir_and_data");
  const lazy::Value value = impl.read();
  const auto address = [](const void* p) { return std::to_string(reinterpret_cast<uintptr_t>(p)); };
  if (value.node->is_data()) return "data " + address(value.node->data().array.get());
  return "ir " + address(value.node.get()) + "." + std::to_string(value.index);
}

// Returns whether set_() of its storage, offset, sizes and strides gives the tensor: it shows
// memory as it is, and in a dtype that the storage can be read in.
bool is_window(const at::Tensor& tensor) {
  lazy::TensorImpl& impl = lazy::expect_lazy(tensor, "_xla_is_window");
  if (!dispatch::computation_of(impl).is_nothing()) return false;
  const lazy::GraphLock lock;
  const at::ScalarType stored = impl.lazy_storage().geometry().dtype;
  const at::ScalarType shown = impl.geometry()->dtype;
  return stored == shown || toRealValueType(stored) == shown || impl.geometry()->contiguous;
}

}  // namespace

void init_tensor(py::module_& m) {
  m.def("_xla_is_window", &is_window);
  m.def("_xla_get_cpu_tensors", [](const std::vector<at::Tensor>& tensors) {
    for (const at::Tensor& t : tensors) lazy::expect_lazy(t, "_xla_get_cpu_tensors");
    return dispatch::fetch(tensors, "a copy to the CPU");
  });
  m.def(
      "_xla_sync_multi",
      [](const std::vector<at::Tensor>& tensors, const std::vector<std::string>&, bool wait,
         bool sync_xla_data) {
        int device = 0;
        std::vector<lazy::Value> values = present_values(tensors, "_xla_sync_multi", &device);
        executor::Cause cause = executor::kValueIsRead;
        cause.takes_offers = sync_xla_data;
        executor::materialize(values, device, cause);
        if (wait) executor::wait_device(device);
      },
      py::arg("tensors"), py::arg("devices") = std::vector<std::string>(), py::arg("wait") = true,
      py::arg("sync_xla_data") = true);
  // Donation by hand (executor/run/offers.h).
  m.def(
      "_set_buffer_donation",
      [](const at::Tensor& t, bool should_donate) {
        const lazy::GraphLock lock;
        return executor::offer(offered_value(t), should_donate);
      },
      py::arg("tensor"), py::arg("should_donate"));
  m.def(
      "_get_buffer_donation",
      [](const at::Tensor& t) {
        const lazy::GraphLock lock;
        return executor::is_offered(offered_value(t));
      },
      py::arg("tensor"));
  m.def(
      "_xla_get_enable_alias_with_buffer_donor_config",
      [](const std::string&) { return executor::reads_take_offers(); }, py::arg("device") = "");
  m.def(
      "_xla_set_enable_alias_with_buffer_donor_config",
      [](bool enable, const std::string&) { executor::set_reads_take_offers(enable); },
      py::arg("enable_user_config_alias") = false, py::arg("device") = "");
  // Tensors that share a storage share this id; it is never 0.
  m.def("_xla_get_tensor_id", [](const at::Tensor& t) {
    return reinterpret_cast<uintptr_t>(&lazy::expect_lazy(t, "_xla_get_tensor_id").lazy_storage());
  });
  m.def("_xla_resize_storage", [](const py::object& storage, size_t bytes) {
    const at::Storage memory = torch::createStorage(storage.ptr());
    auto* resized = dynamic_cast<lazy::Storage*>(memory.unsafeGetStorageImpl());
    TXLA_CHECK(resized != nullptr, "UntypedStorage.resize_: expected memory of xla, got that of ",
               memory.device().str(), ".");
    const lazy::GraphLock lock;
    dispatch::resize_storage(*resized, bytes);
  });
  m.def("_unique_id_for_ir_and_data", &unique_id);
  // For each tensor, whether it waits to be computed; what is not on xla never does.
  m.def("_check_tensor_need_materialization", [](const std::vector<at::Tensor>& tensors) {
    std::vector<bool> waits;
    for (const at::Tensor& tensor : tensors) {
      int device = 0;
      const bool is_lazy = lazy::as_lazy(tensor) != nullptr;
      waits.push_back(is_lazy &&
                      !present_values({tensor}, "_check_tensor_need_materialization", &device)[0]
                           .node->is_data());
    }
    return waits;
  });
  // The type of the elements on the device: "f32".
  m.def("_get_xla_tensor_shape_type", [](const at::Tensor& t) {
    const lazy::Geometry* geometry = lazy::expect_lazy(t, "_get_xla_tensor_shape_type").geometry();
    return std::string(hlo::name(ops::to_hlo(*geometry).dtype));
  });
  m.def(
      "_xla_live_storages",
      [](const std::string& device) {
        return lazy::Device::of(device_index(device)).live_storages.load();
      },
      py::arg("device") = "");
  m.def("_xla_lend", &lend);
  m.def("_xla_borrow", &borrow, py::arg("tensor"), py::arg("device") = "");
  // The part of a tensor on each real device, by the device's name.
  m.def("_xla_local_shards", &local_shards);
}

}  // namespace torch_xla::python
