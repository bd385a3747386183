// PyTorch's CPU kernel as the judge of calls that cannot be. Users know its exceptions; Meta
// kernels have others, and a lowering would fail long after the call, when a program is compiled.
#pragma once

#include <set>
#include <vector>

#include <ATen/core/stack.h>

#include "dispatch/calls/plan.h"
#include "lazy/node.h"

namespace torch_xla::dispatch {

class CpuKernel {
 public:
  explicit CpuKernel(const Plan& plan);

  bool is_elementwise() const { return elementwise_; }

  // What the kernel is shown of tensors: their dtypes, with one element each or with at most two
  // along each dimension, or all that is known: where values are not, zeros that take no memory
  // which the kernel does not write to.
  enum class Show : uint8_t { Dtypes, Corner, Values };
  // Throws what the kernel throws for such arguments. Nothing where there is no kernel.
  void call(const torch::jit::Stack& stack, size_t base, Show show) const;

  // Throws where a recorded call has no lowering for its dtypes, or no kernel that its program
  // would call, or where PyTorch's operator does not know them or not together.
  void check_lowering(const lazy::Signature& signature, const torch::jit::Stack& stack,
                      size_t base) const;

  // Throws where the kernel refuses to compute something of no elements: the median of nothing.
  void check_empty(const lazy::Signature& signature, const torch::jit::Stack& stack,
                   size_t base) const;

  // Throws where the kernel of `op`, the out= form of the call, refuses the dtypes of its outputs.
  void check_outputs(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                     size_t base) const;
  // Throws where the kernel of `op`, the call in place, refuses the dtypes. Of elementwise ones.
  void check_in_place(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                      size_t base) const;

 private:
  // Throws where the kernel does not know the dtypes of its operands.
  void check_dtypes(const lazy::Signature& signature, const torch::jit::Stack& stack,
                    size_t base) const;

  // Throws where the kernel does not take operands of these dtypes together.
  void check_mix(const lazy::Signature& signature, const torch::jit::Stack& stack,
                 size_t base) const;

  // As `call`, of any overload of the operator; outputs have no elements.
  void call(const c10::OperatorHandle& op, size_t count, const torch::jit::Stack& stack,
            size_t base, Show show) const;

  const Plan& plan_;
  bool elementwise_;
  // Dtypes of operands of which a call of full size has told. Guarded by the graph lock.
  mutable std::set<std::vector<at::ScalarType>> known_dtypes_;
  mutable std::set<std::vector<at::ScalarType>> known_mixes_;    // likewise, that go together
  mutable std::set<std::vector<at::ScalarType>> known_outputs_;  // likewise, with outputs
};

}  // namespace torch_xla::dispatch
