// Checks the numbers that PyTorch's CPU kernel converts to the result's dtype, and raises where the
// dtype does not hold them: 300 in uint8, 1e300 in float32.
#pragma once

#include <vector>

#include <ATen/core/stack.h>

#include "dispatch/calls/plan.h"
#include "lazy/geometry.h"

namespace torch_xla::dispatch {

class ConvertedNumbers {
 public:
  explicit ConvertedNumbers(const OperatorPlan& plan);

  // Throws PyTorch's exception where the result's dtype does not hold a number.
  void check(const torch::jit::Stack& stack, size_t base, const lazy::Geometry& result) const {
    for (const size_t position : positions_) check_one(stack[base + position], result);
  }

 private:
  void check_one(const c10::IValue& number, const lazy::Geometry& result) const;

  const ops::Traits& traits_;
  std::vector<size_t> positions_;
};

}  // namespace torch_xla::dispatch
