// Values between host and device.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lazy/node.h"
#include "pjrt/client.h"

namespace torch_xla::executor {

pjrt::DType to_pjrt(at::ScalarType dtype);
at::ScalarType to_torch(pjrt::DType dtype);
// The dtype of the device's buffer, which may be narrower than the tensor's.
at::ScalarType held_dtype(const pjrt::Array& array);

// A leaf that holds a copy of the CPU tensor.
lazy::Value upload(const at::Tensor& tensor, int device);

// New CPU tensors, row-major, with the values' contents. Whatever still waits to be computed for
// them is computed in one run, and `values` become data; all copies are in flight together.
std::vector<at::Tensor> download(std::vector<lazy::Value>& values, int device);

// What each of the real devices holds of a value, by its index among them.
std::vector<std::pair<pjrt::Device, at::Tensor>> download_shards(lazy::Value value, int device);

// The same value on another device.
lazy::Value copy_to_device(const lazy::Value& value, int from, int to);

}  // namespace torch_xla::executor
