// Runs PyTorch's own Meta kernels: the output shapes, strides and dtypes of every recorded call.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "ops/meta.h"

namespace torch_xla::dispatch {

using ops::meta_tensor;

// The keys to exclude around a call that is below autograd. (Excluding XLA itself would exclude
// every dense backend.)
c10::DispatchKeySet below_autograd();

// Calls the operator's Meta kernel on `stack`, as its traits say. PyTorch's Python functions shadow
// most C++ Meta kernels and cost far more, so C++ runs where there is some, also for what the
// kernel calls in turn. Thread-safe.
class MetaKernel {
 public:
  // The caller is the user, or a Meta kernel: PyTorch's Python functions write
  // to tensors whose elements share memory, which users may not.
  enum class Caller : uint8_t { User, Meta };
  explicit MetaKernel(const c10::OperatorHandle& op, Caller caller = Caller::User);
  void call(torch::jit::Stack* stack) const;
  // Returns whether it refuses what the CPU kernel refuses, in its words: both begin with the same
  // code.
  bool speaks_for_cpu() const { return native_ != nullptr || check_ != nullptr; }

 private:
  void shapes(torch::jit::Stack* stack, size_t base) const;
  void pytorch(torch::jit::Stack* stack) const;

  c10::OperatorHandle op_;
  const c10::KernelFunction* native_ = nullptr;  // the shadowed C++ kernel, if any
  void (*meta_)(ops::MetaCall&) = nullptr;
  ops::Check check_ = nullptr;
  at::MemoryFormat (*layout_)(const ops::Arguments&) = nullptr;
};

}  // namespace torch_xla::dispatch
