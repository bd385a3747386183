// Matrix products as the families of lowering rules write them: operands of one dtype, narrow
// floats accumulated in f32 and left there, so that a rule rounds once, at its end.
#pragma once

#include <string_view>

#include "hlo/ops.h"

namespace torch_xla::ops {

// The type in which a product of `dtype` accumulates; results of the functions below have it.
hlo::DType accumulator(hlo::DType dtype);

// dot_general with that result type.
hlo::Value dot(const hlo::Value& lhs, const hlo::Value& rhs, const hlo::DotDims& dims);

// What a product contracts, and what is left of each operand beside the batch.
struct Extents {
  int64_t contracted = 1, left = 1, right = 1;

  int64_t work() const { return contracted * left * right; }
};

// XLA's CPU backend adds up such a product one element after another, as kernels of PyTorch do,
// which is slow and loses a digit with each tenfold length; a reduction does neither, on any
// platform.
bool is_few_long_sums(const Extents& e, hlo::DType dtype);

// A product of two operands by the letters of their dimensions, e.g. contract(x, "bik", w, "bkj",
// "bij"). A letter that both have is contracted unless the result has it; a letter that one alone
// has and the result lacks is summed.
hlo::Value contract(const hlo::Value& lhs, std::string_view lhs_letters, const hlo::Value& rhs,
                    std::string_view rhs_letters, std::string_view result_letters);

}  // namespace torch_xla::ops
