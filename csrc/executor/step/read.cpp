#include "executor/step/read.h"

#include "executor/run/array_types.h"
#include "executor/run/live_data.h"
#include "executor/run/runtime.h"
#include "executor/run/transfer.h"
#include "executor/step/read_data.h"
#include "executor/step/sync.h"
#include "lazy/lock.h"

namespace torch_xla::executor {

std::vector<at::Tensor> download(std::vector<lazy::Value>& values, int device) {
  materialize(values, device);
  return read_data(values, device);
}

std::vector<std::pair<pjrt::Device, at::Tensor>> download_shards(lazy::Value value, int device) {
  std::vector<lazy::Value> values = {std::move(value)};
  materialize(values, device);
  return read_shards(values[0], device);
}

lazy::Value reshard(const lazy::Value& value, int device, const spmd::Sharding* sharding) {
  std::vector<lazy::Value> values = {value};
  materialize(values, device);
  const pjrt::Array& array = *values[0].node->data().array;
  if (array.sharding() == held_sharding(sharding, array.dims()) && array.num_buffers() != 0) {
    return values[0];
  }
  return upload(read_data(values, device)[0], device, sharding);
}

lazy::Value copy_to_device(const lazy::Value& value, int from, int to) {
  std::vector<lazy::Value> ready = {value};
  materialize(ready, from);
  pjrt::Array& array = *ready[0].node->data().array;
  const lazy::GraphLock lock;  // a run may send it
  send(array, Runtime::get().devices(from));
  return data_value(&ready[0].geometry(), to,
                    counted(array.copy_to(Runtime::get().devices(to)), to));
}

}  // namespace torch_xla::executor
