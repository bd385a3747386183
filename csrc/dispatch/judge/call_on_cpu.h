// Carries out recorded calls by PyTorch's own kernels, to compare with.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include "lazy/node.h"

namespace torch_xla::dispatch {

using Tensors = std::vector<at::Tensor>;

// Returns the arguments of a recorded call in the order of its schema. `operands` are those of the
// node, on `device`; devices among the arguments become that one.
torch::jit::Stack arguments_of(const lazy::Node& call, const Tensors& operands, c10::Device device);

// Returns the results of a call of these CPU tensors, in the order of Signature::outputs. Throws
// NotImplementedError where the CPU cannot give them: the call draws random numbers, runs functions
// of its own (control flow), or neither PyTorch nor its expansion nor its traits have a kernel; and
// what the kernel throws.
Tensors call_on_cpu(const lazy::Node& call, const Tensors& operands);

}  // namespace torch_xla::dispatch
