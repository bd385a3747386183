// Products of 64-bit integers from products of narrow ones, for compilers that have no others.
#pragma once

#include <functional>

#include "hlo/builder.h"

namespace torch_xla::hlo {

// A matrix product or a convolution of 64-bit integers, exact modulo 2^64. `product` makes it of
// operands of u8, with a result of u32; `terms` is the number of elements that a result sums.
Value in_limbs(const Value& lhs, const Value& rhs, int64_t terms, DType result,
               const std::function<Value(const Value&, const Value&)>& product);

}  // namespace torch_xla::hlo
