// Matrix products as the families of lowering rules write them: operands of one dtype, narrow
// floats accumulated in f32 and left there, so that a rule rounds once, at its end.
#pragma once

#include <string_view>

#include "hlo/ops.h"

namespace torch_xla::ops {

// Returns the type in which a product of `dtype` accumulates; results of the functions below have
// it.
hlo::DType accumulator(hlo::DType dtype);

// Makes a dot_general with that result type.
hlo::Value dot(const hlo::Value& lhs, const hlo::Value& rhs, const hlo::DotDims& dims);

// The number of elements that a product contracts, and that remain of each operand beside the
// batch.
struct Extents {
  int64_t contracted = 1, left = 1, right = 1;

  // It has more than 64 bits for the largest products.
  double work() const {
    return static_cast<double>(contracted) * static_cast<double>(left) * static_cast<double>(right);
  }
};

// Returns whether a product is better made as a reduction. XLA's CPU backend and kernels of PyTorch
// add up such a product one element after another, which is slow and loses a digit with each
// tenfold length; a reduction does neither, on any platform.
bool is_few_long_sums(const Extents& e, hlo::DType dtype);

// Makes a product of two operands by the letters of their dimensions, e.g. contract(x, "bik", w,
// "bkj", "bij"). A letter that both have is contracted unless the result has it; a letter that one
// alone has and the result lacks is summed.
hlo::Value contract(const hlo::Value& lhs, std::string_view lhs_letters, const hlo::Value& rhs,
                    std::string_view rhs_letters, std::string_view result_letters);

}  // namespace torch_xla::ops
