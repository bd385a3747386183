// Copies values between host and devices.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lazy/node.h"
#include "pjrt/client.h"

namespace torch_xla::executor {

pjrt::DType to_pjrt(at::ScalarType dtype);
at::ScalarType to_torch(pjrt::DType dtype);
// Returns the dtype of the device's buffer, which may be narrower than the tensor's.
at::ScalarType held_dtype(const pjrt::Array& array);

// Makes a leaf that holds a copy of the CPU tensor.
lazy::Value upload(const at::Tensor& tensor, int device);

// Returns new CPU tensors, row-major, with the values' contents. One run computes whatever still
// waits, and `values` become data; all copies are in flight together.
std::vector<at::Tensor> download(std::vector<lazy::Value>& values, int device);

// Returns what each real device holds of a value, in their order.
std::vector<std::pair<pjrt::Device, at::Tensor>> download_shards(lazy::Value value, int device);

// Copies a value to another device.
lazy::Value copy_to_device(const lazy::Value& value, int from, int to);

}  // namespace torch_xla::executor
