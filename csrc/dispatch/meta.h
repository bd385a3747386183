// Runs PyTorch's own Meta kernels: the output shapes, strides and dtypes of every recorded call.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "lazy/geometry.h"

namespace torch_xla::dispatch {

// The keys to exclude around a call that is below autograd. (Excluding XLA itself would exclude
// every dense backend.)
c10::DispatchKeySet below_autograd();

// A tensor without memory that has this geometry.
at::Tensor meta_tensor(const lazy::Geometry& geometry, bool wrapped_number);

// Replaces the arguments on the stack, from `base`, by results without memory. Null where PyTorch
// has a Meta kernel, and where nothing but the operator's own kernel can tell.
using MissingMeta = void (*)(torch::jit::Stack& stack, size_t base);
MissingMeta missing_meta(const c10::OperatorHandle& op);

// Refuses arguments, from `base`, that PyTorch's CPU kernel refuses and its Meta kernel does not
// look at. Null for all but a few operators.
using MetaCheck = void (*)(const torch::jit::Stack& stack, size_t base);
MetaCheck meta_check(const c10::OperatorHandle& op);

// The memory format of the first result, from the arguments from `base`; Preserve leaves that of
// the Meta kernel. Null where the Meta kernel's strides are those of the CPU kernel, which is so
// for all but a few operators.
using MetaLayout = at::MemoryFormat (*)(const torch::jit::Stack& stack, size_t base);
MetaLayout meta_layout(const c10::OperatorHandle& op);

// Calls the operator's Meta kernel on `stack`. PyTorch's Python functions shadow most C++ Meta
// kernels and cost far more, so the C++ one runs where there is one. Thread-safe.
class MetaKernel {
 public:
  explicit MetaKernel(const c10::OperatorHandle& op);
  void call(torch::jit::Stack* stack) const;
  // Whether it refuses what the CPU kernel refuses, in its words: both begin with the same code.
  bool speaks_for_cpu() const { return native_ != nullptr || check_ != nullptr; }

 private:
  void shapes(torch::jit::Stack* stack, size_t base) const;

  c10::OperatorHandle op_;
  const c10::KernelFunction* native_ = nullptr;  // the shadowed C++ kernel, if any
  MissingMeta missing_ = nullptr;
  MetaCheck check_ = nullptr;
  MetaLayout layout_ = nullptr;
};

}  // namespace torch_xla::dispatch
