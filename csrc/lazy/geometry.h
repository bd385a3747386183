// What PyTorch knows of a tensor without its values: dtype, sizes and strides, interned.
// Equal geometries are one object, so comparing and hashing one is comparing a pointer.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "util/hash.h"

namespace torch_xla::lazy {

struct Geometry {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t numel;
  bool contiguous;     // row-major
  util::Hash128 hash;  // of all of the above

  // Bytes of storage that these sizes and strides span.
  int64_t storage_elements() const;
};

// The one object for this geometry; lives as long as the process.
const Geometry* intern(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);
const Geometry* intern_contiguous(at::ScalarType dtype, c10::IntArrayRef sizes);

}  // namespace torch_xla::lazy
