#include "hlo/limbs.h"

#include "hlo/ops.h"
#include "util/error.h"

namespace torch_xla::hlo {
namespace {

// Bits of a limb: as many as fit u8 and let the sum of `terms` products of two limbs fit u32.
int limb_width(int64_t terms) {
  for (int width = 8; width > 0; --width) {
    const int64_t largest = (int64_t{1} << width) - 1;
    if (terms <= int64_t{0xFFFFFFFF} / (largest * largest)) return width;
  }
  util::fail(util::ErrorKind::Value,
             "a product of integers: expected sums of less than 2^32 elements, got ", terms,
             ". Cut it into parts.");
}

Value shifted(std::string_view direction, const Value& x, int by) {
  return by == 0 ? x : binary(direction, x, splat_int(x.builder(), by, x.type()));
}

// x modulo 2^bits is the sum of limb i times 2^(i * width).
Values limbs_of(const Value& x, int width, int bits_of_result) {
  const Value bits = convert(x, DType::U64);
  const Value mask = splat_int(x.builder(), (int64_t{1} << width) - 1, bits.type());
  Values limbs;
  for (int at = 0; at < bits_of_result; at += width) {
    limbs.push_back(
        convert(logical_and(shifted("shift_right_logical", bits, at), mask), DType::U8));
  }
  return limbs;
}

}  // namespace

Value in_limbs(const Value& lhs, const Value& rhs, int64_t terms, DType result,
               const std::function<Value(const Value&, const Value&)>& product) {
  const int width = limb_width(terms);
  const int bits = static_cast<int>(bit_width(result));
  const Values left = limbs_of(lhs, width, bits), right = limbs_of(rhs, width, bits);
  Value sum;
  for (size_t i = 0; i < left.size(); ++i) {
    // Beyond these, products are multiples of 2^bits.
    for (size_t j = 0; i + j < left.size(); ++j) {
      const Value wide = convert(product(left[i], right[j]), DType::U64);
      const Value part = shifted("shift_left", wide, static_cast<int>(i + j) * width);
      sum = sum ? add(sum, part) : part;
    }
  }
  return convert(sum, result);
}

}  // namespace torch_xla::hlo
