// Running totals along a dimension, by operations that are alike for all sizes.
#pragma once

#include <functional>
#include <span>

#include "hlo/ops.h"

namespace torch_xla::ops {

// (earlier, later) -> both together; associative.
using Join = std::function<hlo::Values(std::span<const hlo::Value>, std::span<const hlo::Value>)>;

// Joins each element with all before it; `neutral` are scalars that change nothing.
hlo::Values scan_in_loop(const hlo::Values& xs, const hlo::Values& neutral, int64_t dim,
                         const Join& join);

}  // namespace torch_xla::ops
