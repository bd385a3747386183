// Packs Python numbers for their way to a program, as two arrays.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "lazy/node.h"

namespace torch_xla::executor {

struct PackedNumbers {
  std::vector<double> floats;
  std::vector<int64_t> ints;

  void add(const lazy::Number& number, lazy::NumberKind kind) {
    if (kind == lazy::NumberKind::Float) {
      floats.push_back(number.real);
    } else if (kind == lazy::NumberKind::Complex) {
      floats.insert(floats.end(), {number.real, number.imag});
    } else {
      ints.push_back(number.integer);
    }
  }
  // Returns whether the bits are the same: those of 0 and -0 are not.
  bool is_same(const PackedNumbers& other) const;
};

// Says which Python numbers are constants of programs: none, unless the user asks for it. Random
// seeds never are. Guarded by the GraphLock.
struct ConstantNumbers {
  bool zero_and_one = false;
  bool all = false;

  bool contains(const lazy::Signature& signature, std::span<const lazy::Number> numbers,
                size_t i) const;
};
ConstantNumbers& constant_numbers();

}  // namespace torch_xla::executor
