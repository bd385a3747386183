// The bits of floating-point numbers of every format that StableHLO has.
#pragma once

#include <cstdint>

#include "hlo/types.h"

namespace torch_xla::hlo {

// Rounds to nearest, ties to even. What is too large becomes infinity, or nan where there is none.
uint64_t bits_of_float(double value, DType dtype);
double float_of_bits(uint64_t bits, DType dtype);
int significand_bits(DType dtype);  // with the first, which is not stored
double largest_finite(DType dtype);
bool has_infinity(DType dtype);

}  // namespace torch_xla::hlo
