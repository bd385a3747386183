// PyTorch's CPU kernel as the judge of calls that cannot be. Users know its exceptions; Meta
// kernels have others, and a lowering would fail long after the call, when a program is compiled.
#pragma once

#include <ATen/core/stack.h>

#include "dispatch/plan.h"
#include "lazy/node.h"

namespace torch_xla::dispatch {

class CpuKernel {
 public:
  explicit CpuKernel(const Plan& plan);

  bool is_elementwise() const { return elementwise_; }

  // Throws what the kernel throws for arguments of such dtypes and sizes, or of one element each.
  // All are zero and take no memory that the kernel does not write to. Nothing where there is no
  // such kernel.
  void call(const torch::jit::Stack& stack, size_t base, bool true_sizes) const;

  // Throws where a recorded call has no lowering for its dtypes, or no kernel that its program
  // would call, or where an elementwise operator of PyTorch does not know them.
  void check_lowering(const lazy::Signature& signature, const torch::jit::Stack& stack,
                      size_t base) const;

 private:
  const Plan& plan_;
  bool elementwise_;
};

}  // namespace torch_xla::dispatch
