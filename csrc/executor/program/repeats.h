// Finds the parts of a function that repeat: layers of a network, their gradients, their updates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <c10/util/FunctionRef.h>

#include "executor/program/lower.h"
#include "lazy/function.h"

namespace torch_xla::executor {

// Calls `first` .. `first + length * times` of a function: `times` equal parts, each of which does
// the same with its inputs.
struct Repeat {
  size_t first, length, times;
  // Before its own calls a part computes anew what other parts have computed and the compiler would
  // have fused into its calls. No outputs are said.
  std::vector<Stretch> parts;

  size_t end() const { return first + length * times; }
};

struct RepeatLimits {
  size_t shortest = 8;         // calls of a part
  size_t fewest = 4;           // parts
  int64_t elements = 1 << 18;  // that the calls of a part give: some 0.1 ms on the CPU
};

// Returns repeats in the order of their calls; none overlaps another. The numbers of calls are
// inputs of their program.
std::vector<Repeat> find_repeats(const lazy::Function& function, const RepeatLimits& limits,
                                 c10::function_ref<CallFacts(const lazy::Signature&)> facts_of);

}  // namespace torch_xla::executor
