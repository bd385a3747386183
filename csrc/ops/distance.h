// Vector norms, for the rules that measure rows against each other or against a limit.
#pragma once

#include <span>

#include "hlo/ops.h"

namespace torch_xla::ops {

// Computes (sum |x|^p)^(1/p) over `dims`; p may be 0 (how many are not zero) or infinite. x is
// real.
hlo::Value vector_norm(const hlo::Value& x, std::span<const int64_t> dims, double p);

}  // namespace torch_xla::ops
