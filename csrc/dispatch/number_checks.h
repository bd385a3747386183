// Checks of numbers that are runtime inputs of programs: PyTorch's Meta kernels see those of the
// first call only, since later calls differ in nothing that a program depends on.
#pragma once

#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "dispatch/plan.h"
#include "lazy/geometry.h"

namespace torch_xla::dispatch {

// Looks at the arguments from `base` and throws PyTorch's words. Null for all but a few operators.
using NumberCheck = void (*)(const torch::jit::Stack& stack, size_t base);
NumberCheck number_check(const c10::OperatorHandle& op);

// The numbers of an operator that PyTorch's CPU kernel converts to the dtype of the result, and
// refuses where that does not hold them: 300 in uint8, 1e300 in float32.
class ConvertedNumbers {
 public:
  explicit ConvertedNumbers(const Plan& plan);

  // Throws PyTorch's words.
  void check(const torch::jit::Stack& stack, size_t base, const lazy::Geometry& result) const {
    for (const size_t position : positions_) check_one(stack[base + position], result);
  }

 private:
  enum class NarrowFloats : uint8_t { Exact, AsFloat, Unchecked };
  void check_one(const c10::IValue& number, const lazy::Geometry& result) const;

  std::vector<size_t> positions_;
  NarrowFloats narrow_floats_ = NarrowFloats::AsFloat;
  bool fills_ = false;
};

}  // namespace torch_xla::dispatch
