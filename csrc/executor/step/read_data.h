// Reads data. Where the run that was to make it has failed, that is what the reader is told.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lazy/node.h"
#include "pjrt/client.h"
#include "spmd/sharding.h"

namespace torch_xla::executor {

// As download_data() and download_shards_of_data() (run/transfer.h).
std::vector<at::Tensor> read_data(const std::vector<lazy::Value>& data, int device);
std::vector<std::pair<pjrt::Device, at::Tensor>> read_shards(const lazy::Value& data, int device);
// Splits data so, for all who refer to it. What is on the host is not sent yet.
void split_data(const lazy::Value& data, int device, const spmd::Sharding* sharding);

}  // namespace torch_xla::executor
