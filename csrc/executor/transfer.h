// Copies values between host and devices.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lazy/node.h"
#include "pjrt/client.h"

namespace torch_xla::executor {

pjrt::DType to_pjrt(at::ScalarType dtype);
at::ScalarType to_torch(pjrt::DType dtype);
// Prints how a device holds values in XLA's words: f32[5,4]{1,0}.
std::string xla_shape(const lazy::Geometry& geometry);
// Returns the dtype of the device's buffer, which may be narrower than the tensor's.
at::ScalarType held_dtype(const pjrt::Array& array);

// Makes a leaf that holds a copy of the CPU tensor, split among the devices where there is a
// sharding, in parts that are padded to be equal. On several devices at once nothing is sent before
// it is needed: until then it may be said how the value is to be split.
lazy::Value upload(const at::Tensor& tensor, int device, const spmd::Sharding* sharding = nullptr);
// Data that stays on the host until a run needs it; `maker` is the call that it is the result of.
lazy::DeviceData keep_on_host(const at::Tensor& tensor, int device, const lazy::Source* maker);
// Sends the devices what they lack of an array.
void send(pjrt::Array& array, const std::vector<pjrt::Device>& devices);
// Returns the value as data that is split so; computes what waits for it.
lazy::Value reshard(const lazy::Value& value, int device, const spmd::Sharding* sharding);
// Splits data so, for all who refer to it. What is on the host is not sent yet.
void split_data(const lazy::Value& data, int device, const spmd::Sharding* sharding);
// Returns how devices hold a value of these sizes of which `sharding` is said. Null where each
// holds the whole, as of a value without elements.
const spmd::Sharding* held_sharding(const spmd::Sharding* sharding, at::IntArrayRef sizes);

// Returns new CPU tensors, row-major, with the values' contents. One run computes whatever still
// waits, and `values` become data; all copies are in flight together.
std::vector<at::Tensor> download(std::vector<lazy::Value>& values, int device);

// Returns what each real device holds of a value, in their order.
std::vector<std::pair<pjrt::Device, at::Tensor>> download_shards(lazy::Value value, int device);
// Puts together a value of its parts, CPU tensors: those of holders_of(), the devices that hold the
// first copy of each part.
std::vector<int64_t> holders_of(const spmd::Sharding& sharding);
at::Tensor assemble(const spmd::Sharding& sharding, at::IntArrayRef sizes,
                    const std::vector<at::Tensor>& parts);
// Returns how a value is split among the devices, as far as that is decided; null where each has
// the whole, or will.
const spmd::Sharding* sharding_of(const lazy::Value& value);

// Copies a value to another device.
lazy::Value copy_to_device(const lazy::Value& value, int from, int to);

}  // namespace torch_xla::executor
