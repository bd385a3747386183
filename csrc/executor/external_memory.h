// Memory that a tensor on a device and a tensor of another library have in common, without a copy.
#pragma once

#include <ATen/core/Tensor.h>

#include "lazy/node.h"

namespace torch_xla::executor {

// A tensor of PyTorch's own, on the CPU or CUDA device whose memory the buffer of `value` is in;
// `value` becomes data. While the tensor lives, no run reuses the buffer for its results, so its
// contents stay as they are. A copy where the device holds a narrower dtype than the tensor's.
// Throws where PyTorch has no device for the memory.
at::Tensor lend(lazy::Value& value, int device);

// A leaf over the memory of a tensor on the CPU or CUDA, which stays alive with it. A copy where
// the plugin cannot use that memory. The producer's later writes are seen by the leaf.
lazy::Value borrow(const at::Tensor& tensor, int device);

// All of a value, on the host and not to be written to: its own memory where the host can read
// that, else a copy. `value` becomes data.
at::Tensor on_host(lazy::Value& value, int device);

// The memory of a value that is there now, on the CPU platform: row-major and not to be written to.
// The first device's, where several hold the value. It stays as it is while the graph lock is held.
// Null for a value that waits to be computed or is in a narrower dtype.
const void* peek(const lazy::Value& value);

}  // namespace torch_xla::executor
