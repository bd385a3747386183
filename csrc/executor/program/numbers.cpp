#include "executor/program/numbers.h"

#include <algorithm>
#include <bit>

namespace torch_xla::executor {

using lazy::NumberKind;
using lazy::Signature;

bool PackedNumbers::is_same(const PackedNumbers& other) const {
  const auto bits = [](double number) { return std::bit_cast<uint64_t>(number); };
  return ints == other.ints && std::ranges::equal(floats, other.floats, {}, bits, bits);
}

ConstantNumbers& constant_numbers() {
  static ConstantNumbers constants;
  return constants;
}

bool ConstantNumbers::contains(const Signature& s, std::span<const lazy::Number> numbers,
                               size_t i) const {
  if (!zero_and_one && !all) [[likely]]
    return false;
  if (s.is_seed(i)) return false;
  if (all) return true;
  const lazy::Number& n = numbers[i];
  const bool is_real = s.numbers[i] == NumberKind::Float || s.numbers[i] == NumberKind::Complex;
  return is_real ? n.imag == 0 && (n.real == 0 || n.real == 1) : n.integer == 0 || n.integer == 1;
}

}  // namespace torch_xla::executor
