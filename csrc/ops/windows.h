// Sliding windows of a dimension, and their transpose.
#pragma once

#include <cstdint>

#include "hlo/ops.h"

namespace torch_xla::ops {

// Takes sliding windows of dimension `dim`, which becomes (count, size): element (i, k) comes from
// position i * step + k * dilation.
hlo::Value windows(const hlo::Value& x, int64_t dim, int64_t size, int64_t step,
                   int64_t dilation = 1);
// Transposes `windows`: adds up dimensions `dim` and `dim` + 1 into one of `length`.
hlo::Value overlap_add(const hlo::Value& x, int64_t dim, int64_t length, int64_t step,
                       int64_t dilation = 1);

}  // namespace torch_xla::ops
