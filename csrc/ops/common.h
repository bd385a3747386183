// Helpers for the families of lowering rules: lists of dimensions, and the shape of a rule's
// result.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ops/convert.h"
#include "ops/lowering.h"
#include "ops/notation.h"

namespace torch_xla::ops {

// Makes result `i` of the node: casts `x` to its dtype and broadcasts it to its dimensions.
hlo::Value as_result(const Lowering& l, const hlo::Value& x, size_t i = 0);
inline hlo::Values result(const Lowering& l, const hlo::Value& x) { return {as_result(l, x)}; }

// Returns operand or number `arg`, cast to `dtype` and broadcast to the dimensions of result 0.
// Rounds integers beside narrow floats to those, as PyTorch converts all tensors to one dtype
// first.
hlo::Value operand(const Lowering& l, size_t arg, hlo::DType dtype);
// Returns whether result `i` exists: an output_mask may have refused it.
inline bool is_wanted(const Lowering& l, size_t i) { return l.signature().outputs[i] != nullptr; }
// Makes several results, each cast and broadcast to its type; those not wanted may be empty values.
hlo::Values results(const Lowering& l, std::span<const hlo::Value> values);

// Returns number `arg` in the shape of x and its dtype.
inline hlo::Value number_like(const Lowering& l, size_t arg, const hlo::Value& x) {
  return hlo::broadcast_to(l.number(arg, x.dtype()), x.dims());
}
// Returns whether a Scalar argument is part of the program and equals this number.
bool is_static_number(const Lowering& l, size_t arg, double value);

// Gives true where an element is infinite, of either sign; complex: in either part.
hlo::Value is_inf(const hlo::Value& x);
// Gives true for negative numbers, -0.0 and nan with its sign bit set.
hlo::Value sign_bit(const hlo::Value& x);
hlo::Value trunc(const hlo::Value& x);
// Computes log(exp(x) + exp(y)), of complex numbers too.
hlo::Value log_add(const hlo::Value& x, const hlo::Value& y);
inline hlo::Value real_of(const hlo::Value& x) {
  return hlo::is_complex(x.dtype()) ? hlo::real(x) : x;
}
inline hlo::Value conjugate(const hlo::Value& x) {
  return hlo::is_complex(x.dtype()) ? hlo::complex(hlo::real(x), -hlo::imag(x)) : x;
}

// Dimension lists. A 0-dim tensor accepts dimensions 0 and -1, as in PyTorch.
int64_t wrap_dim(int64_t dim, int64_t rank);
std::vector<int64_t> all_dims(int64_t rank);
// Returns the sorted dimensions of an `int[]?` argument: all where none or an empty list is given.
std::vector<int64_t> dims_or_all(const Lowering& l, size_t arg, int64_t rank);
int64_t elements_along(const hlo::Value& x, std::span<const int64_t> dims);
// Spreads the value of a reduction over `dims` over the dimensions that it was reduced from.
hlo::Value spread(const hlo::Value& reduced, const hlo::Dims& full, std::span<const int64_t> dims);

hlo::Value reduce_sum(const hlo::Value& x, std::span<const int64_t> dims);
hlo::Value reduce_max(const hlo::Value& x, std::span<const int64_t> dims);
hlo::Value reduce_min(const hlo::Value& x, std::span<const int64_t> dims);
// Sums over the last `count` dimensions of floats. XLA's CPU loops add one element at a time; there
// this makes a matrix-vector product, several times faster and with smaller rounding errors.
hlo::Value sum_trailing(const Lowering& l, const hlo::Value& x, int64_t count);

// Throws `"NAME" not implemented for 'DTYPE'`, PyTorch's own words.
[[noreturn]] void not_implemented(std::string_view name, at::ScalarType dtype);

}  // namespace torch_xla::ops
