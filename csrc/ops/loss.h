// PyTorch's reductions of losses and their gradients, for the loss families.
#pragma once

#include "ops/common.h"

namespace torch_xla::ops {

// at::Reduction.
enum class Reduction : int64_t { None = 0, Mean = 1, Sum = 2 };

inline Reduction reduction(const Lowering& l, size_t arg) {
  return static_cast<Reduction>(l.integer(arg));
}

// Reduces the losses of single elements; a mean is over all of them.
hlo::Value reduced(const hlo::Value& losses, Reduction r);

// Makes the gradient of each element's loss from that of the reduced loss: spreads it over `dims`,
// and divides it by `elements` for a mean.
hlo::Value spread_gradient(const hlo::Value& grad, const hlo::Dims& dims, hlo::DType dtype,
                           Reduction r, int64_t elements);

}  // namespace torch_xla::ops
