// Shares memory between tensors on a device and tensors of other libraries, without a copy.
#pragma once

#include <ATen/core/Tensor.h>

#include "lazy/node.h"

namespace torch_xla::executor {

// Returns a tensor of PyTorch's own over the buffer of `value`, on the CPU or CUDA device whose
// memory that is; `value` becomes data. While the tensor lives, no run reuses the buffer for its
// results, so its contents stay as they are. Returns a copy where the device holds a narrower dtype
// than the tensor's. Throws where PyTorch has no device for the memory.
at::Tensor lend(lazy::Value& value, int device);

// Makes a leaf over the memory of a tensor on the CPU or CUDA, and keeps the tensor alive. The leaf
// sees the producer's later writes, unless the plugin cannot use that memory and takes a copy.
lazy::Value borrow(const at::Tensor& tensor, int device);

// Returns all of a value on the host, not to be written to: its own memory where the host can read
// that, else a copy. `value` becomes data.
at::Tensor on_host(lazy::Value& value, int device);

// Returns the memory of a value that is there now, on the CPU platform: row-major, not to be
// written to, and of the first device where several hold the value. It stays as it is while the
// GraphLock is held. Returns null for a value that waits to be computed or is in a narrower dtype.
const void* peek(const lazy::Value& value);

}  // namespace torch_xla::executor
