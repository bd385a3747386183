#include "executor/step/external_memory.h"

#include <ATen/ops/from_blob.h>

#include "executor/run/array_types.h"
#include "executor/run/in_flight.h"
#include "executor/run/live_data.h"
#include "executor/run/runtime.h"
#include "executor/run/transfer.h"
#include "executor/step/deferred.h"
#include "executor/step/read.h"
#include "executor/step/read_data.h"
#include "executor/step/sync.h"
#include "lazy/lock.h"
#include "pjrt/buffer.h"
#include "util/error.h"
#include "util/unlocked.h"

namespace torch_xla::executor {
namespace {

// Keeps a buffer's memory in place for whoever has borrowed it.
class Loan {
 public:
  explicit Loan(std::shared_ptr<const pjrt::Array> array)
      : array_(std::move(array)), data_(array_->whole().share()) {}
  ~Loan() { array_->whole().unshare(); }
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;
  void* data() const { return data_; }

 private:
  std::shared_ptr<const pjrt::Array> array_;
  void* data_;
};

at::Device torch_device_of(const pjrt::Buffer& buffer, const Runtime& runtime) {
  if (buffer.is_on_cpu()) return at::kCPU;
  TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, runtime.device_type() == "CUDA",
                  "DLPack: expected memory of the CPU or of CUDA, got that of ",
                  runtime.device_type(), ". Copy the tensor with .cpu() first.");
  return at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(buffer.device().local_hardware_id()));
}

}  // namespace

at::Tensor lend(lazy::Value& value, int device) {
  std::vector<lazy::Value> values = {value};
  materialize(values, device);
  value = values[0];
  const std::shared_ptr<pjrt::Array> array = value.node->data().array;
  {
    const lazy::GraphLock lock;
    if (array->loss() != nullptr) fail_lost(*array);
  }
  const at::ScalarType dtype = value.geometry().dtype;
  if (held_dtype(*array) != dtype) return read_data(values, device)[0];  // XLA_USE_BF16: a copy
  const pjrt::Devices& devices = Runtime::get().devices(device);
  if (devices.all.size() == 1) {
    const lazy::GraphLock lock;  // a run may send it
    send(*array, devices);
  }
  TXLA_CHECK(array->num_buffers() == 1,
             "DLPack: expected a tensor on one device, got one on all devices of SPMD mode. Copy "
             "it with .cpu() first.");
  const pjrt::Buffer& buffer = array->whole();
  try {
    {
      const util::Unlocked unlocked;
      buffer.ready().await();
    }
    const at::Device place = torch_device_of(buffer, Runtime::get());
    const auto loan = std::make_shared<const Loan>(array);
    return at::from_blob(
        loan->data(), value.geometry().sizes, [loan](void*) {},
        at::TensorOptions().dtype(dtype).device(place), place);
  } catch (const pjrt::Error& e) {
    fail_read(e, device);
  }
}

lazy::Value borrow(const at::Tensor& tensor, int device) {
  const at::Tensor dense = tensor.contiguous();
  Runtime& runtime = Runtime::get();
  const pjrt::Devices& devices = runtime.devices(device);
  TXLA_CHECK(devices.all.size() == 1,
             "DLPack: expected a tensor for one device, got SPMD mode, where ",
             "all devices are one. Copy it with .to('xla') instead.");
  const pjrt::Device& place = devices.mine[0];
  const auto keep = [dense] { (void)dense; };
  const pjrt::DType dtype = to_pjrt(dense.scalar_type());
  try {
    std::unique_ptr<pjrt::Buffer> buffer;
    if (dense.is_cpu()) {
      buffer =
          pjrt::Buffer::from_host(runtime.client(), dense.const_data_ptr(), dtype, dense.sizes(),
                                  std::nullopt, pjrt::HostSemantics::ZeroCopy, place, keep);
    } else {
      TXLA_CHECK(dense.is_cuda() && runtime.device_type() == "CUDA" &&
                     dense.device().index() == place.local_hardware_id(),
                 "from_dlpack: expected memory of the CPU or of xla:", device, ", got that of ",
                 dense.device().str(), ". Copy it to the CPU first.");
      buffer = pjrt::Buffer::view_of_device_memory(runtime.client(), dense.mutable_data_ptr(),
                                                   dtype, dense.sizes(), place, keep);
    }
    lazy::DeviceData data = counted(pjrt::Array(std::move(*buffer)), device);
    data.donatable = false;
    return data_value(lazy::intern_contiguous(dense.scalar_type(), dense.sizes()), device,
                      std::move(data));
  } catch (const pjrt::Error& e) {
    fail(e);
  }
}

at::Tensor on_host(lazy::Value& value, int device) {
  Runtime& runtime = Runtime::get();
  if (runtime.device_type() == "CPU" && runtime.devices(device).all.size() == 1) {
    return lend(value, device);
  }
  std::vector<lazy::Value> values = {value};
  at::Tensor copy = std::move(download(values, device)[0]);
  value = values[0];
  return copy;
}

const void* peek(const lazy::Value& value) {
  const lazy::GraphLock lock;  // other threads launch what waits
  if (!value.node->is_data() || Runtime::get().device_type() != "CPU") return nullptr;
  const pjrt::Array* array = value.node->data().array.get();
  if (array == nullptr || array->is_deleted()) return nullptr;
  if (held_dtype(*array) != value.geometry().dtype) return nullptr;
  if (array->host_data() != nullptr) return array->host_data().get();
  try {
    const pjrt::Buffer& buffer = array->whole();
    return buffer.ready().ready() ? buffer.unsafe_pointer() : nullptr;
  } catch (const pjrt::Error&) {
    return nullptr;  // the run that was to make it failed, which those who need the value are told
  }
}

}  // namespace torch_xla::executor
