// Converts PyTorch's dtypes to those of the device.
#pragma once

#include <c10/core/ScalarType.h>

#include "hlo/types.h"
#include "lazy/geometry.h"

namespace torch_xla::ops {

using lazy::to_hlo;

// Returns the dtype in which the device holds tensors of `dtype`: another one where XLA_USE_BF16,
// XLA_DOWNCAST_BF16 or XLA_USE_32BIT_LONG ask for it at this moment.
at::ScalarType device_dtype(at::ScalarType dtype);
// Returns whether device_dtype() has ever given another dtype in this process.
bool has_narrowed();

inline hlo::Type to_hlo(const lazy::Geometry& g) {
  return {to_hlo(device_dtype(g.dtype)), g.sizes};
}

}  // namespace torch_xla::ops
