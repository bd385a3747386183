// Geometry: the dtype, sizes and strides of a tensor, interned. Equal geometries are one object, so
// comparing or hashing them takes their pointers only.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include <c10/core/ScalarType.h>
#include <c10/core/impl/SizesAndStrides.h>
#include <c10/util/ArrayRef.h>

#include "hlo/types.h"
#include "util/hash.h"

namespace torch_xla::lazy {

struct Geometry {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  int64_t numel;
  bool contiguous;     // row-major
  util::Hash128 hash;  // of all of the above

  // Holds what c10::TensorImpl would derive from sizes and strides, so that tensors copy it.
  struct Layout {
    c10::impl::SizesAndStrides sizes_and_strides;
    bool contiguous, channels_last, channels_last_contiguous, channels_last_3d,
        channels_last_3d_contiguous, non_overlapping_and_dense;
  };
  Layout layout;

  // Returns how many elements of storage these sizes and strides span.
  int64_t storage_elements() const;
  // Returns intern_contiguous() of this dtype and these sizes.
  const Geometry* row_major() const;

 private:
  mutable std::atomic<const Geometry*> row_major_{nullptr};  // null until it was asked for
};

// Converts PyTorch's dtype to XLA's. Throws for dtypes that XLA lacks, complex32 among them.
hlo::DType to_hlo(at::ScalarType dtype);

// Returns the one object for this geometry, which lives as long as the process. XLA must have the
// dtype.
const Geometry* intern(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);
const Geometry* intern_contiguous(at::ScalarType dtype, c10::IntArrayRef sizes);

}  // namespace torch_xla::lazy
