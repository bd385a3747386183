// Reads tensors whose storage has taken another geometry (resize_) since they were made. Their
// elements keep their places in the storage's memory.
#pragma once

#include "lazy/tensor.h"

namespace torch_xla::lazy {

// The layer above, which has views of memory, supplies this function.
extern Value (*read_over)(Storage& storage, const Geometry& geometry);

inline Value value_over(Storage& storage, const Geometry& geometry) {
  return &geometry == &storage.geometry() ? storage.value() : read_over(storage, geometry);
}

}  // namespace torch_xla::lazy
