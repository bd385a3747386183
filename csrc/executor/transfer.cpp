#include "executor/transfer.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>

#include "debug/metrics.h"
#include "executor/in_flight.h"
#include "executor/runtime.h"
#include "executor/sync.h"
#include "lazy/lock.h"
#include "util/error.h"

namespace torch_xla::executor {

pjrt::DType to_pjrt(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return PJRT_Buffer_Type_PRED;
    case at::kByte:
      return PJRT_Buffer_Type_U8;
    case at::kChar:
      return PJRT_Buffer_Type_S8;
    case at::kShort:
      return PJRT_Buffer_Type_S16;
    case at::kInt:
      return PJRT_Buffer_Type_S32;
    case at::kLong:
      return PJRT_Buffer_Type_S64;
    case at::kUInt16:
      return PJRT_Buffer_Type_U16;
    case at::kUInt32:
      return PJRT_Buffer_Type_U32;
    case at::kUInt64:
      return PJRT_Buffer_Type_U64;
    case at::kBFloat16:
      return PJRT_Buffer_Type_BF16;
    case at::kHalf:
      return PJRT_Buffer_Type_F16;
    case at::kFloat:
      return PJRT_Buffer_Type_F32;
    case at::kDouble:
      return PJRT_Buffer_Type_F64;
    case at::kComplexFloat:
      return PJRT_Buffer_Type_C64;
    case at::kComplexDouble:
      return PJRT_Buffer_Type_C128;
    case at::kFloat8_e4m3fn:
      return PJRT_Buffer_Type_F8E4M3FN;
    case at::kFloat8_e4m3fnuz:
      return PJRT_Buffer_Type_F8E4M3FNUZ;
    case at::kFloat8_e5m2:
      return PJRT_Buffer_Type_F8E5M2;
    case at::kFloat8_e5m2fnuz:
      return PJRT_Buffer_Type_F8E5M2FNUZ;
    default:
      util::fail(util::ErrorKind::Type, "to('xla'): expected a dtype that XLA has, got ",
                 c10::toString(dtype), ". Convert the tensor to another dtype first.");
  }
}

lazy::Value upload(const at::Tensor& tensor, int device) {
  static const debug::Metric time("TransferToDeviceTime");
  static const debug::Metric bytes("OutboundData", debug::Unit::Bytes);
  const debug::TimedScope scope(time);
  const at::Tensor dense = tensor.contiguous();
  Runtime& runtime = Runtime::get();
  const std::vector<pjrt::Device>& devices = runtime.devices(device);
  bytes.add(static_cast<double>(dense.nbytes() * devices.size()));
  std::shared_ptr<pjrt::Array> array;
  try {
    array = std::make_shared<pjrt::Array>(
        pjrt::Array::from_host(runtime.client(), dense.const_data_ptr(),
                               to_pjrt(dense.scalar_type()), dense.sizes(), devices));
  } catch (const pjrt::Error& e) {
    fail(e);
  }
  return data_value(lazy::intern_contiguous(dense.scalar_type(), dense.sizes()), device,
                    counted(std::move(array)));
}

namespace {

// CPU tensors with the contents of buffers, each of a geometry; all copies are in flight together.
std::vector<at::Tensor> read(
    const std::vector<std::pair<const pjrt::Buffer*, const lazy::Geometry*>>& buffers, int device) {
  static const debug::Metric time("TransferFromDeviceTime");
  static const debug::Metric bytes("InboundData", debug::Unit::Bytes);
  const debug::TimedScope scope(time);
  std::vector<at::Tensor> tensors;
  for (const auto& [buffer, g] : buffers) {
    tensors.push_back(at::empty(g->sizes, at::TensorOptions().dtype(g->dtype).device(at::kCPU)));
    bytes.add(static_cast<double>(tensors.back().nbytes()));
  }
  try {
    const BlockingScope blocking;
    std::vector<pjrt::Event> copies;
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& t = tensors[i];
      if (t.numel() == 0) continue;
      copies.push_back(buffers[i].first->copy_to_host(t.mutable_data_ptr(), t.nbytes()));
    }
    for (const pjrt::Event& copy : copies) copy.await();
  } catch (const pjrt::Error& e) {
    InFlight::of(device).fail_read(e);
  }
  return tensors;
}

}  // namespace

std::vector<at::Tensor> download(std::vector<lazy::Value>& values, int device) {
  materialize(values, device);
  std::vector<std::pair<const pjrt::Buffer*, const lazy::Geometry*>> buffers;
  for (const lazy::Value& value : values) {
    buffers.emplace_back(&value.node->data().array->buffer(0), &value.geometry());
  }
  return read(buffers, device);
}

std::vector<std::pair<pjrt::Device, at::Tensor>> download_shards(lazy::Value value, int device) {
  std::vector<lazy::Value> values = {std::move(value)};
  materialize(values, device);
  const pjrt::Array& array = *values[0].node->data().array;
  std::vector<std::pair<const pjrt::Buffer*, const lazy::Geometry*>> buffers;
  {
    const lazy::GraphLock lock;  // a run may extend the array
    for (size_t i = 0; i < array.num_buffers(); ++i) {
      buffers.emplace_back(&array.buffer(i), &values[0].geometry());
    }
  }
  const std::vector<at::Tensor> tensors = read(buffers, device);
  std::vector<std::pair<pjrt::Device, at::Tensor>> shards;
  for (size_t i = 0; i < tensors.size(); ++i) {
    shards.emplace_back(array.buffer(i).device(), tensors[i]);
  }
  return shards;
}

lazy::Value copy_to_device(const lazy::Value& value, int from, int to) {
  std::vector<lazy::Value> ready = {value};
  materialize(ready, from);
  const pjrt::Array& array = *ready[0].node->data().array;
  auto copy = std::make_shared<pjrt::Array>(array.copy_to(Runtime::get().devices(to)));
  return data_value(&ready[0].geometry(), to, counted(std::move(copy)));
}

}  // namespace torch_xla::executor
