// Checks the memory that a call writes for overlaps that PyTorch's kernels refuse. A recorded call
// works on copies, so it would give values where those kernels raise.
#pragma once

#include <ATen/core/stack.h>

#include "dispatch/calls/plan.h"

namespace torch_xla::dispatch {

class WrittenMemory {
 public:
  WrittenMemory(const OperatorPlan& plan, bool elementwise);

  // Throws where a written tensor overlaps a read one in a way that the operator's kernel refuses.
  // Warns where the kernel warns of a written tensor that overlaps itself.
  void check(const torch::jit::Stack& stack, size_t base) const;

 private:
  enum class Reads : uint8_t {
    Anyhow,
    Elementwise,  // each element before it is written: the same memory, or none of it
    Elsewhere,    // while others are written: none of the memory
  };
  void check_against(const at::Tensor& written, const at::Tensor& read) const;

  const OperatorPlan& plan_;
  Reads reads_ = Reads::Anyhow;
};

}  // namespace torch_xla::dispatch
