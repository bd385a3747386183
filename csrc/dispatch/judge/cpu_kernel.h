// Checks a call against PyTorch's CPU kernel so that it raises the same exception. Meta kernels
// raise others, and a lowering would fail long after the call, when a program is compiled.
#pragma once

#include <set>
#include <vector>

#include <ATen/core/stack.h>

#include "dispatch/calls/plan.h"
#include "lazy/node.h"

namespace torch_xla::dispatch {

class CpuKernel {
 public:
  explicit CpuKernel(const OperatorPlan& plan);

  bool is_elementwise() const { return elementwise_; }

  // The stand-ins that the kernel gets for tensors: one element each (Dtypes), at most two along
  // each dimension (Corner), one row of those that have as many as the first (Row: a batch of one),
  // or full size (Values) with the values that are known. Others are zeros, which take no memory
  // until the kernel writes to them.
  enum class Show : uint8_t { Dtypes, Corner, Row, Values };
  // Calls the kernel on such stand-ins, which throws what it throws. Does nothing where there is no
  // kernel.
  void call(const torch::jit::Stack& stack, size_t base, Show show) const;

  // Throws where a recorded call has no lowering for its dtypes or its program has no kernel to
  // call, and where PyTorch's kernel does not take the dtypes, or not together.
  void check_lowering(const lazy::Signature& signature, const torch::jit::Stack& stack,
                      size_t base) const;

  // Throws where the kernel refuses an operand without elements: the median of nothing.
  void check_empty(const lazy::Signature& signature, const torch::jit::Stack& stack,
                   size_t base) const;

  // Throws where the kernel of `op`, the out= form of the call, refuses the dtypes of its outputs.
  void check_outputs(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                     size_t base) const;
  // Throws where the kernel of `op`, the form in place of an elementwise operator, refuses the
  // dtypes.
  void check_in_place(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                      size_t base) const;

 private:
  // Throws where the kernel does not know the dtypes of its operands.
  void check_dtypes(const lazy::Signature& signature, const torch::jit::Stack& stack,
                    size_t base) const;

  // Throws where the kernel does not take operands of these dtypes together.
  void check_mix(const lazy::Signature& signature, const torch::jit::Stack& stack,
                 size_t base) const;

  // Calls the kernel of any overload of the operator like the public call(); outputs have no
  // elements.
  void call(const c10::OperatorHandle& op, size_t count, const torch::jit::Stack& stack,
            size_t base, Show show) const;

  const OperatorPlan& plan_;
  bool elementwise_;
  // Dtypes of operands that a call of full size has settled. Guarded by the GraphLock.
  mutable std::set<std::vector<at::ScalarType>> known_dtypes_;
  mutable std::set<std::vector<at::ScalarType>> known_mixes_;    // likewise, that go together
  mutable std::set<std::vector<at::ScalarType>> known_outputs_;  // likewise, with outputs
};

}  // namespace torch_xla::dispatch
