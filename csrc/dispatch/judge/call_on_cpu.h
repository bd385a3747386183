// Carries out recorded calls by PyTorch's own kernels, to compare with.
#pragma once

#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "lazy/function.h"

namespace torch_xla::dispatch {

using Tensors = std::vector<at::Tensor>;

// Returns the arguments of a call in the order of its schema. `operands` are those of the call, on
// `device`; devices among the arguments become that one.
torch::jit::Stack arguments_of(const lazy::Signature& call, std::span<const lazy::Number> numbers,
                               const Tensors& operands, c10::Device device);

// Returns the results of a function's call, of these CPU tensors, in the order of
// Signature::outputs. Throws NotImplementedError where the CPU cannot give them: the call draws
// random numbers, runs functions of its own (control flow), or neither PyTorch nor its expansion
// nor its traits have a kernel; and what the kernel throws.
Tensors call_on_cpu(const lazy::Function& function, size_t call, const Tensors& operands);

}  // namespace torch_xla::dispatch
