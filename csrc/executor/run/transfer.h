// Copies data between host and devices. What waits to be computed is read by step/read.h.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lazy/node.h"
#include "pjrt/buffer.h"

namespace torch_xla::executor {

// Makes a leaf that holds a copy of the CPU tensor, split among the devices where there is a
// sharding, in parts that are padded to be equal. On several devices at once nothing is sent before
// it is needed: until then it may be said how the value is to be split.
lazy::Value upload(const at::Tensor& tensor, int device, const spmd::Sharding* sharding = nullptr);
// Makes a leaf of its parts on the devices of this process, in their order: CPU tensors, padded to
// equal sizes. Where there is nothing to split, each has the first.
lazy::Value upload_parts(const std::vector<at::Tensor>& parts, at::IntArrayRef sizes, int device,
                         const spmd::Sharding* sharding);
// Data that stays on the host until a run needs it; `maker` is the call that it is the result of.
lazy::DeviceData keep_on_host(const at::Tensor& tensor, int device, const lazy::Source* maker);
// Sends the devices what they lack of an array.
void send(pjrt::Array& array, const pjrt::Devices& devices);
// Splits data so, for all who refer to it: its value is in host memory, and is not sent yet.
void split_on_host(const lazy::Value& data, std::shared_ptr<const void> value,
                   const spmd::Sharding* sharding);
// Returns whether the devices of this process hold all of the value, or will.
bool has_all_parts(const lazy::Value& data);
// Returns new CPU tensors, row-major, with the contents of data; all copies are in flight together.
// Throws where other processes alone have a part. These two throw pjrt::Error where a run that was
// to make the data has failed.
std::vector<at::Tensor> download_data(const std::vector<lazy::Value>& data);
// Returns what each real device of this process holds of data, in their order.
std::vector<std::pair<pjrt::Device, at::Tensor>> download_shards_of_data(const lazy::Value& data,
                                                                         int device);
// Returns how a value is split among the devices, as far as that is decided; null where each has
// the whole, or will.
const spmd::Sharding* sharding_of(const lazy::Value& value);
// Makes data of the large zeros among `constants`, where programs run in the host's memory, and
// returns the others. They take no memory: nobody has written to their pages, and the kernel shows
// one page for all. Programs only read them; one that may take them over copies them first. The
// caller holds the GraphLock.
std::vector<lazy::Value> materialize_zeros(std::vector<lazy::Value> constants, int device);

}  // namespace torch_xla::executor
