// Reads values, which are computed first where they wait to be.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lazy/node.h"
#include "pjrt/client.h"
#include "spmd/sharding.h"

namespace torch_xla::executor {

// Returns new CPU tensors, row-major, with the values' contents. One run computes whatever still
// waits, and `values` become data; all copies are in flight together.
std::vector<at::Tensor> download(std::vector<lazy::Value>& values, int device);
// Returns what each real device holds of a value, in their order.
std::vector<std::pair<pjrt::Device, at::Tensor>> download_shards(lazy::Value value, int device);
// Returns the value as data that is split so.
lazy::Value reshard(const lazy::Value& value, int device, const spmd::Sharding* sharding);
// Copies a value to another device.
lazy::Value copy_to_device(const lazy::Value& value, int from, int to);

}  // namespace torch_xla::executor
