// The operations of lazy::SplitMix on values of a program, 64-bit integers of one type. What is
// known when the program is made stays a number.
#pragma once

#include <cstdint>

#include "hlo/ops.h"
#include "lazy/rng.h"

namespace torch_xla::ops {

struct SplitMixOps {
  static hlo::Value plus(const hlo::Value& x, const hlo::Value& y) { return hlo::add(x, y); }
  static hlo::Value plus(const hlo::Value& x, uint64_t y) { return hlo::add(x, word(x, y)); }
  static hlo::Value times(const hlo::Value& x, uint64_t y) { return hlo::mul(x, word(x, y)); }
  static uint64_t times(uint64_t x, uint64_t y) { return x * y; }
  static hlo::Value folded(const hlo::Value& x, int shift) {
    return hlo::logical_xor(
        x, hlo::binary("shift_right_logical", x, word(x, static_cast<uint64_t>(shift))));
  }

 private:
  static hlo::Value word(const hlo::Value& like, uint64_t value) {
    return hlo::scalar_int(like.builder(), static_cast<int64_t>(value), like.dtype());
  }
};

}  // namespace torch_xla::ops
