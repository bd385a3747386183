// out= tensors take the shape of the result, with PyTorch's checks and warnings.
#pragma once

#include <string>

#include "lazy/tensor.h"

namespace torch_xla::dispatch {

// Refuses to write fractions to integers, and the like.
void check_can_cast(at::ScalarType result, at::ScalarType out);

// Checks that the result's dtype can be cast to the output's and resizes the output if needed.
void prepare_out(const std::string& op, const at::Tensor& out, const lazy::Geometry& result);

// Copies a result to the out= tensor, with PyTorch's checks; `operands` may not share its memory.
at::Tensor& write_out(const std::string& op, at::Tensor& out, const at::Tensor& result,
                      at::TensorList operands);

// resize_: other sizes over the same contents, in row-major order; new elements are zero.
void resize(lazy::TensorImpl& tensor, c10::IntArrayRef sizes);

}  // namespace torch_xla::dispatch
