// Python numbers on their way to a program: they travel packed, as two arrays.
#pragma once

#include <cstdint>
#include <vector>

#include "lazy/node.h"

namespace torch_xla::executor {

struct PackedNumbers {
  std::vector<double> floats;
  std::vector<int64_t> ints;

  void add(const lazy::Number& number, lazy::NumberKind kind);
};

// Which Python numbers are constants of programs: none, unless a program asks for it. Random seeds
// never are. Guarded by the graph lock.
struct ConstantNumbers {
  bool zero_and_one = false;
  bool all = false;

  bool contains(const lazy::Signature& signature, const lazy::Numbers& numbers, size_t i) const;
};
ConstantNumbers& constant_numbers();

}  // namespace torch_xla::executor
