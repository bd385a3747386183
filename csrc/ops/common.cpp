#include "ops/common.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

namespace torch_xla::ops {

using hlo::DType;
using hlo::Value;

Value operand(const Lowering& l, size_t arg, DType dtype) {
  const DType common = l.out().dtype;
  const bool narrow = dtype == DType::F32 && compute_dtype(common) != common;
  if (narrow && l.in(arg).rank() > 0 && !hlo::is_float(l.in(arg).dtype())) {
    return hlo::convert(l.in(arg, common, l.out().dims), dtype);
  }
  return l.in(arg, dtype, l.out().dims);
}

Value as_result(const Lowering& l, const Value& x, size_t i) {
  const hlo::Type type = l.out(i);
  return hlo::broadcast_to(cast(x, type.dtype), type.dims);
}

hlo::Values results(const Lowering& l, std::span<const Value> values) {
  hlo::Values all(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_wanted(l, i)) all[i] = as_result(l, values[i], i);
  }
  return all;
}

bool is_static_number(const Lowering& l, size_t arg, double value) {
  const lazy::Argument& a = l.signature().arguments.at(arg);
  if (a.kind != lazy::Argument::Kind::Static || !a.value.isScalar()) return false;
  const c10::Scalar s = a.value.toScalar();
  return !s.isComplex() && s.toDouble() == value;
}

Value is_inf(const Value& x) {
  if (hlo::is_complex(x.dtype())) return is_inf(hlo::real(x)) | is_inf(hlo::imag(x));
  if (!hlo::is_float(x.dtype())) return hlo::zero(x.builder(), x.type().with(DType::Pred));
  return hlo::equal(hlo::abs(x), std::numeric_limits<double>::infinity());
}

Value sign_bit(const Value& x) {
  const DType dtype = x.dtype();
  hlo::Builder& b = x.builder();
  if (dtype == DType::Pred || hlo::is_unsigned(dtype)) {
    return hlo::zero(b, x.type().with(DType::Pred));
  }
  if (hlo::is_integer(dtype)) return hlo::less(x, 0);
  const DType bits = dtype == DType::F64           ? DType::S64
                     : hlo::bit_width(dtype) == 32 ? DType::S32
                     : hlo::bit_width(dtype) == 16 ? DType::S16
                                                   : DType::S8;
  return hlo::less(hlo::bitcast_convert(x, x.type().with(bits)), 0);
}

Value trunc(const Value& x) {
  if (!hlo::is_float(x.dtype())) return x;
  return hlo::select(hlo::less(x, 0), hlo::ceil(x), hlo::floor(x));
}

Value log_add(const hlo::Value& x, const hlo::Value& y) {
  const Value rx = real_of(x), ry = real_of(y);
  const Value first = hlo::greater_equal(rx, ry);
  const Value top = hlo::select(first, x, y), bottom = hlo::select(first, y, x);
  const Value sum = top + hlo::log1p(hlo::exp(bottom - top));
  // Equal infinities have no difference.
  return hlo::select(is_inf(rx) & hlo::equal(rx, ry), top, sum);
}

int64_t wrap_dim(int64_t dim, int64_t rank) {
  const int64_t n = std::max<int64_t>(rank, 1);
  if (dim < -n || dim >= n) {
    throw std::invalid_argument("dimension: expected one in [" + std::to_string(-n) + ", " +
                                std::to_string(n - 1) + "], got " + std::to_string(dim) + ".");
  }
  return dim < 0 ? dim + n : dim;
}

std::vector<int64_t> all_dims(int64_t rank) {
  std::vector<int64_t> dims(rank);
  std::iota(dims.begin(), dims.end(), 0);
  return dims;
}

std::vector<int64_t> dims_or_all(const Lowering& l, size_t arg, int64_t rank) {
  std::vector<int64_t> dims = l.ints_or_empty(arg);
  if (rank == 0 || dims.empty()) return all_dims(rank);
  for (int64_t& dim : dims) dim = wrap_dim(dim, rank);
  std::sort(dims.begin(), dims.end());
  return dims;
}

int64_t elements_along(const Value& x, std::span<const int64_t> dims) {
  int64_t n = 1;
  for (const int64_t dim : dims) n *= x.dim(dim);
  return n;
}

Value spread(const Value& reduced, const hlo::Dims& full, std::span<const int64_t> dims) {
  std::vector<int64_t> kept;
  for (int64_t dim = 0; dim < static_cast<int64_t>(full.size()); ++dim) {
    if (std::find(dims.begin(), dims.end(), dim) == dims.end()) kept.push_back(dim);
  }
  return hlo::broadcast_in_dim(reduced, full, kept);
}

Value reduce_sum(const Value& x, std::span<const int64_t> dims) {
  if (dims.empty()) return x;
  return hlo::reduce(x, hlo::scalar(x.builder(), 0, x.dtype()), dims, hlo::add);
}

namespace {

using Combine = Value (*)(const Value&, const Value&);

// The extreme of rows, whose halves are compared until they are short: a reduction goes through a
// row one element after another on the CPU, the comparison takes many at a time. The halves of an
// odd row overlap.
Value extreme_of_rows(Value x, Combine extreme) {
  constexpr int64_t kShort = 16;
  const int64_t last = x.rank() - 1;
  for (int64_t n = x.dim(last); n > kShort; n = x.dim(last)) {
    const int64_t half = (n + 1) / 2;
    x = extreme(hlo::slice_dim(x, last, 0, half), hlo::slice_dim(x, last, n - half, n));
  }
  return x;
}

Value reduce_extreme(Value x, std::span<const int64_t> dims, const Value& least, Combine extreme) {
  if (dims.empty()) return x;
  std::vector<int64_t> reduced(dims.begin(), dims.end());
  if (x.builder().lacks().vector_extremes) {
    const auto is_reduced = [&](int64_t dim) { return std::ranges::count(reduced, dim) != 0; };
    hlo::Dims sizes = x.dims();
    while (x.rank() > 1 && is_reduced(x.rank() - 1) && is_reduced(x.rank() - 2)) {
      std::erase(reduced, x.rank() - 1);
      sizes[sizes.size() - 2] *= sizes.back();
      sizes.pop_back();
      x = hlo::reshape(x, sizes);
    }
    if (is_reduced(x.rank() - 1)) x = extreme_of_rows(x, extreme);
  }
  return hlo::reduce(x, least, reduced, extreme);
}

}  // namespace

Value reduce_max(const Value& x, std::span<const int64_t> dims) {
  return reduce_extreme(x, dims, hlo::lowest(x.builder(), {x.dtype(), {}}), hlo::max);
}
Value reduce_min(const Value& x, std::span<const int64_t> dims) {
  return reduce_extreme(x, dims, hlo::highest(x.builder(), {x.dtype(), {}}), hlo::min);
}

namespace {

// A product adds up one element after another. Of long rows it does so in parts, if they can be
// cut.
int64_t part_of(int64_t columns) {
  constexpr int64_t kLong = 16384, kLeast = 64;
  if (columns <= kLong) return columns;
  for (int64_t part = kLong / 2; part >= kLeast; --part) {
    if (columns % part == 0) return part;
  }
  return columns;
}

}  // namespace

Value sum_trailing(const Lowering& l, const Value& x, int64_t count) {
  const hlo::Dims kept(x.dims().begin(), x.dims().end() - count);
  const int64_t rows = hlo::Type{x.dtype(), kept}.elements();
  const int64_t columns = rows == 0 ? 0 : x.type().elements() / rows;
  const bool as_product = l.target().is_cpu() && rows > 1 && columns >= 16 &&
                          (x.dtype() == DType::F32 || x.dtype() == DType::F64);
  if (!as_product) {
    std::vector<int64_t> dims(count);
    std::iota(dims.begin(), dims.end(), x.rank() - count);
    return reduce_sum(x, dims);
  }
  const int64_t part = part_of(columns);
  const Value ones = hlo::one(x.builder(), {x.dtype(), {part}});
  const Value sums = hlo::dot_general(
      hlo::reshape(x, {rows, columns / part, part}), ones,
      {.lhs_batch = {}, .rhs_batch = {}, .lhs_contract = {2}, .rhs_contract = {0}}, x.dtype());
  return hlo::reshape(reduce_sum(sums, std::array<int64_t, 1>{1}), kept);
}

void not_implemented(std::string_view name, at::ScalarType dtype) {
  throw std::invalid_argument('"' + std::string(name) + "\" not implemented for '" +
                              c10::toString(dtype) + "'");
}

}  // namespace torch_xla::ops
