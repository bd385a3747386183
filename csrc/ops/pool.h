// PoolWindow, a window over the last dimensions of a tensor, for the pooling families.
#pragma once

#include <vector>

#include "ops/lowering.h"

namespace torch_xla::ops {

// Expands an `int[n]` argument, which may hold one number for all dimensions.
std::vector<int64_t> expanded(const std::vector<int64_t>& values, size_t n);

struct PoolWindow {
  std::vector<int64_t> kernel, stride, padding, dilation;  // one entry per spatial dimension

  size_t n() const { return kernel.size(); }
  int64_t elements() const;
  // Returns the span of a window in its input, dilation included.
  int64_t extent(size_t i) const { return (kernel[i] - 1) * dilation[i] + 1; }
};

// Reads consecutive arguments kernel_size, stride, padding and (where the operator has it)
// dilation.
PoolWindow pool_window(const Lowering& l, size_t kernel_arg, size_t n, bool dilated);

// Sums grad_output into zeros of the input's type at the flat spatial positions in `indices`.
hlo::Value scatter_to_positions(const hlo::Value& grad, const hlo::Value& indices,
                                const hlo::Type& input, size_t n, bool unique);
// Returns `v` in a form that XLA computes once, however many readers it has: its CPU compiler would
// repeat a whole window in each element of a reader that takes slices. `x` is any float operand.
hlo::Value computed_once(const Lowering& l, const hlo::Value& v, const hlo::Value& x);

}  // namespace torch_xla::ops
