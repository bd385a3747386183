// Checks of numbers that are runtime inputs of programs: PyTorch's Meta kernels see those of the
// first call only, since later calls differ in nothing that a program depends on.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_xla::dispatch {

// Looks at the arguments from `base` and throws PyTorch's words. Null for all but a few operators.
using NumberCheck = void (*)(const torch::jit::Stack& stack, size_t base);
NumberCheck number_check(const c10::OperatorHandle& op);

}  // namespace torch_xla::dispatch
