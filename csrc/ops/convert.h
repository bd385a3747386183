// PyTorch's conversions between dtypes, and the dtypes in which it computes.
#pragma once

#include "hlo/ops.h"

namespace torch_xla::ops {

// Returns the type in which PyTorch computes on elements of this type: f32 for the narrow floats,
// rounded once at the end; others unchanged.
hlo::DType compute_dtype(hlo::DType dtype);

// Converts between dtypes as PyTorch does: anything but zero is true, floats wrap into narrow
// integers.
hlo::Value cast(const hlo::Value& x, hlo::DType dtype);

}  // namespace torch_xla::ops
