// Makes products of integers from products of narrow ones, for compilers that lack others.
#pragma once

#include <functional>

#include "hlo/builder.h"

namespace torch_xla::hlo {

// Makes a matrix product or a convolution of integers, exact modulo 2 to the result's bits.
// `product` makes the same product of u8 operands with a u32 result; each element of the result
// sums `terms` products.
Value in_limbs(const Value& lhs, const Value& rhs, int64_t terms, DType result,
               const std::function<Value(const Value&, const Value&)>& product);

}  // namespace torch_xla::hlo
