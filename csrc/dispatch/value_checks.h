// Indices out of range and probabilities that are none, seen when the call is made. Programs drop
// such indices and read some element in their place; PyTorch's CPU kernels refuse them.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_xla::dispatch {

// A tensor of the CPU over the memory of an xla tensor whose values are there to be looked at: on
// the CPU platform, not on their way. For use under the graph lock, and not to be written to.
std::optional<at::Tensor> known_values(const at::Tensor& tensor);

// Whether PyTorch's CPU kernel would refuse what is known of the values of the arguments, from
// `base`. Null for all but the operators that take indices or probabilities.
using ValueCheck = bool (*)(const torch::jit::Stack& stack, size_t base);
ValueCheck value_check(const c10::OperatorHandle& op);

}  // namespace torch_xla::dispatch
