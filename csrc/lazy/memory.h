// What tensors hold that share a storage which has taken another geometry (resize_) since they
// were made: their elements stay in place in its memory.
#pragma once

#include "lazy/tensor.h"

namespace torch_xla::lazy {

// Supplied by the layer above, which has views of memory.
extern Value (*read_over)(Storage& storage, const Geometry& geometry);

inline Value value_over(Storage& storage, const Geometry& geometry) {
  return &geometry == &storage.geometry() ? storage.value() : read_over(storage, geometry);
}

}  // namespace torch_xla::lazy
