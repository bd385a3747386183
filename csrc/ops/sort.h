// Sorts as PyTorch orders values: nan is the greatest, -0.0 equals 0.0, equal elements keep their
// order.
#pragma once

#include <string_view>

#include "ops/lowering.h"

namespace torch_xla::ops {

struct Sorted {
  hlo::Value values, indices;  // indices are i64
};
Sorted sorted(const hlo::Value& x, int64_t dim, bool descending, const Target& target);

}  // namespace torch_xla::ops
