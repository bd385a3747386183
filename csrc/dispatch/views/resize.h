// Resizes tensors over their memory: resize_, and out= tensors with PyTorch's checks.
#pragma once

#include <string>

#include "lazy/tensor.h"

namespace torch_xla::dispatch {

// Checks that the result's dtype can be cast to the output's and resizes the output if needed.
void prepare_out(const std::string& op, const at::Tensor& out, const lazy::Geometry& result);

// Copies a result to the out= tensor, with PyTorch's checks; `operands` may not share its memory.
at::Tensor& write_out(const std::string& op, at::Tensor& out, const at::Tensor& result,
                      at::TensorList operands);

// Gives the tensor other sizes and strides over the same memory, which grows where it must; new
// elements are zero. Other tensors over that memory stay what they are.
void resize(lazy::TensorImpl& tensor, const lazy::Geometry* to);

// Gives a storage so many bytes: with none it lets its value go, and what it gets anew is zero.
// Tensors over it stay what they are, and show what is written into it later.
void resize_storage(lazy::Storage& storage, size_t bytes);

// Read and write tensors over memory that has taken another geometry since they were made.
lazy::Value read_over(lazy::Storage& storage, const lazy::Geometry& geometry);
void write_over(lazy::Storage& storage, const lazy::Geometry& geometry, const lazy::Value& value);

}  // namespace torch_xla::dispatch
