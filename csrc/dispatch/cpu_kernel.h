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

  // What the kernel is shown of tensors: their dtypes, with one element each, or all that is known:
  // where values are not, zeros that take no memory which the kernel does not write to.
  enum class Show : uint8_t { Dtypes, Values };
  // Throws what the kernel throws for such arguments. Nothing where there is no kernel.
  void call(const torch::jit::Stack& stack, size_t base, Show show) const;

  // Throws where a recorded call has no lowering for its dtypes, or no kernel that its program
  // would call, or where an elementwise operator of PyTorch does not know them.
  void check_lowering(const lazy::Signature& signature, const torch::jit::Stack& stack,
                      size_t base) const;

 private:
  const Plan& plan_;
  bool elementwise_;
};

}  // namespace torch_xla::dispatch
