#include "hlo/float_bits.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "util/error.h"

namespace torch_xla::hlo {
namespace {

// A floating-point format of at most 16 bits.
struct SmallFloat {
  int mantissa_bits, bias, total_bits;
  uint32_t largest;   // the bits of the largest finite number
  uint32_t infinity;  // 0: the format has none
  uint32_t nan;
  bool negative_zero;  // false: its bits are the nan
};

SmallFloat small_float(DType dtype) {
  switch (dtype) {
    case DType::BF16:
      return {7, 127, 16, 0x7F7F, 0x7F80, 0x7FC0, true};
    case DType::F16:
      return {10, 15, 16, 0x7BFF, 0x7C00, 0x7E00, true};
    case DType::F8E5M2:
      return {2, 15, 8, 0x7B, 0x7C, 0x7F, true};
    case DType::F8E4M3FN:
      return {3, 7, 8, 0x7E, 0, 0x7F, true};
    case DType::F8E4M3FNUZ:
      return {3, 8, 8, 0x7F, 0, 0x80, false};
    case DType::F8E5M2FNUZ:
      return {2, 16, 8, 0x7F, 0, 0x80, false};
    default:
      util::fail(util::ErrorKind::Runtime, "constant: expected a float of 8 or 16 bits, got ",
                 name(dtype), ".");
  }
}

// Rounds to nearest, ties to even. What is too large becomes infinity, or nan where there is none,
// as in the conversions of the compiler.
uint32_t encode(double value, const SmallFloat& f) {
  if (std::isnan(value)) return f.nan;
  const uint32_t sign = std::signbit(value) ? 1u << (f.total_bits - 1) : 0;
  const uint32_t overflow = f.infinity != 0 ? sign | f.infinity : f.nan;
  if (std::isinf(value)) return overflow;
  uint64_t bits = 0;
  if (value != 0) {
    const int exponent = std::max(std::ilogb(value), 1 - f.bias);  // subnormals share the least
    const double steps = std::nearbyint(std::ldexp(std::abs(value), f.mantissa_bits - exponent));
    bits = (static_cast<uint64_t>(exponent + f.bias - 1) << f.mantissa_bits) +
           static_cast<uint64_t>(steps);
  }
  if (bits > f.largest) return overflow;
  if (bits == 0 && !f.negative_zero) return 0;
  return sign | static_cast<uint32_t>(bits);
}

double decode_positive(uint32_t bits, const SmallFloat& f) {
  const int exponent = static_cast<int>(bits >> f.mantissa_bits);
  const uint32_t mantissa = bits & ((1u << f.mantissa_bits) - 1);
  if (exponent == 0) return std::ldexp(mantissa, 1 - f.bias - f.mantissa_bits);
  return std::ldexp(mantissa + (1u << f.mantissa_bits), exponent - f.bias - f.mantissa_bits);
}

}  // namespace

uint64_t bits_of_float(double value, DType dtype) {
  if (dtype == DType::F64) return std::bit_cast<uint64_t>(value);
  if (dtype == DType::F32) return std::bit_cast<uint32_t>(static_cast<float>(value));
  return encode(value, small_float(dtype));
}

double float_of_bits(uint64_t bits, DType dtype) {
  if (dtype == DType::F64) return std::bit_cast<double>(bits);
  if (dtype == DType::F32) return std::bit_cast<float>(static_cast<uint32_t>(bits));
  const SmallFloat f = small_float(dtype);
  const uint32_t sign = 1u << (f.total_bits - 1);
  const auto magnitude = static_cast<uint32_t>(bits) & (sign - 1);
  const bool negative = (bits & sign) != 0;
  if (negative && magnitude == 0 && !f.negative_zero) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  double value = decode_positive(magnitude, f);
  if (magnitude > f.largest) {
    value = magnitude == f.infinity ? std::numeric_limits<double>::infinity()
                                    : std::numeric_limits<double>::quiet_NaN();
  }
  return negative ? -value : value;
}

int significand_bits(DType dtype) {
  if (dtype == DType::F64) return std::numeric_limits<double>::digits;
  if (dtype == DType::F32) return std::numeric_limits<float>::digits;
  return small_float(dtype).mantissa_bits + 1;
}

double largest_finite(DType dtype) {
  if (dtype == DType::F64) return std::numeric_limits<double>::max();
  if (dtype == DType::F32) return std::numeric_limits<float>::max();
  const SmallFloat f = small_float(dtype);
  return decode_positive(f.largest, f);
}

bool has_infinity(DType dtype) {
  return dtype == DType::F64 || dtype == DType::F32 || small_float(dtype).infinity != 0;
}

}  // namespace torch_xla::hlo
