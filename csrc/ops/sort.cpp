// sort, topk, and the statistics that are read off sorted values: kthvalue, median, mode.
#include "ops/sort.h"

#include <array>
#include <limits>

#include "ops/common.h"
#include "ops/gather.h"
#include "ops/meta.h"
#include "ops/rearrange.h"
#include "ops/rules.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

// --- one 64-bit word for each element ------------------------------------------------------
// XLA:CPU sorts single words four times faster than pairs with a comparator: the word holds an
// order-preserving key, the position (which makes the sort stable), and the sign of a zero.

bool fits_word(const Value& x, int64_t dim) {
  return !hlo::is_complex(x.dtype()) && hlo::bit_width(x.dtype()) <= 32 &&
         x.dim(dim) < std::numeric_limits<int32_t>::max();
}

constexpr double kSignBit = 2147483648.0;

Value bits_of(const Value& x) {
  return hlo::bitcast_convert(hlo::convert(x, DType::F32), x.type().with(DType::U32));
}

// Unsigned order of the keys is the order of the values.
Value key_of(const Value& x) {
  if (hlo::is_float(x.dtype())) {
    const Value bits = bits_of(x);
    Value key = hlo::select(hlo::greater_equal(bits, kSignBit), ~bits, bits + kSignBit);
    key = hlo::select(hlo::equal(bits, kSignBit), kSignBit, key);
    return hlo::select(hlo::is_nan(x), kSignBit + 0x7FC00000, key);
  }
  if (x.dtype() == DType::Pred || hlo::is_unsigned(x.dtype())) return hlo::convert(x, DType::U32);
  const Value bits = hlo::bitcast_convert(hlo::convert(x, DType::S32), x.type().with(DType::U32));
  return bits + kSignBit;
}

Value value_of(const Value& key, DType dtype) {
  if (hlo::is_float(dtype)) {
    const Value bits = hlo::select(hlo::greater_equal(key, kSignBit), key - kSignBit, ~key);
    return hlo::convert(hlo::bitcast_convert(bits, key.type().with(DType::F32)), dtype);
  }
  if (dtype == DType::Pred || hlo::is_unsigned(dtype)) return hlo::convert(key, dtype);
  const Value bits = hlo::bitcast_convert(key - kSignBit, key.type().with(DType::S32));
  return hlo::convert(bits, dtype);
}

Sorted sorted_words(const Value& x, int64_t dim, bool descending) {
  hlo::Builder& b = x.builder();
  const hlo::Type words = x.type().with(DType::U64);
  const auto word = [&](const Value& v) { return hlo::convert(v, DType::U64); };
  const auto shift = [&](std::string_view direction, const Value& v, int64_t by) {
    return hlo::binary(direction, v, hlo::splat_int(b, by, v.type()));
  };
  Value key = key_of(x);
  if (descending) key = ~key;
  Value packed =
      shift("shift_left", word(key), 32) | shift("shift_left", hlo::iota(b, words, dim), 1);
  const bool has_signed_zero = hlo::is_float(x.dtype());
  if (has_signed_zero) {
    packed = packed | word(hlo::equal(bits_of(x), kSignBit));
  }
  packed = hlo::sort(std::span<const Value>(&packed, 1), dim, false,
                     [](std::span<const Value> v) { return hlo::less(v[0], v[1]); })[0];
  key = hlo::convert(shift("shift_right_logical", packed, 32), DType::U32);
  if (descending) key = ~key;
  const Value low = hlo::convert(packed, DType::U32);
  Sorted s;
  s.indices = hlo::convert(shift("shift_right_logical", low, 1), DType::S64);
  s.values = value_of(key, x.dtype());
  if (has_signed_zero) {
    const Value negative = hlo::not_equal(low & hlo::splat_int(b, 1, low.type()), 0);
    s.values = hlo::select(negative, -0.0, s.values);
  }
  return s;
}

// --- values and positions sorted together --------------------------------------------------

Value precedes(const Value& a, const Value& b, bool descending) {
  if (!hlo::is_float(a.dtype())) return descending ? hlo::greater(a, b) : hlo::less(a, b);
  return descending ? hlo::greater(a, b) | (hlo::is_nan(a) & ~hlo::is_nan(b))
                    : hlo::less(a, b) | (hlo::is_nan(b) & ~hlo::is_nan(a));
}

Sorted sorted_pairs(const Value& x, int64_t dim, bool descending) {
  // Positions travel as i32: half the memory to move, and no dimension is longer.
  const Values operands = {x, hlo::iota(x.builder(), x.type().with(DType::S32), dim)};
  const Values r = hlo::sort(operands, dim, true, [&](std::span<const Value> v) {
    return precedes(v[0], v[1], descending);
  });
  return {r[0], hlo::convert(r[1], DType::S64)};
}

}  // namespace

Sorted sorted(const Value& x, int64_t dim, bool descending, const Target& target) {
  if (x.rank() == 0) return {x, hlo::zero(x.builder(), x.type().with(DType::S64))};
  if (x.type().elements() == 0) return {x, hlo::zero(x.builder(), x.type().with(DType::S64))};
  if (!target.is_cpu() || !fits_word(x, dim)) return sorted_pairs(x, dim, descending);
  const int64_t last = x.rank() - 1;
  const Sorted s = sorted_words(move_dim(x, dim, last), last, descending);
  return {move_dim(s.values, last, dim), move_dim(s.indices, last, dim)};
}

namespace {

// Results (values, indices) in the node's own shapes, with or without the reduced dimension.
Values pair(Lowering& l, const Value& values, const Value& indices) {
  return {hlo::reshape(values, l.out(0).dims), hlo::reshape(indices, l.out(1).dims)};
}

Values sort_by(Lowering& l, size_t dim_arg, size_t descending_arg) {
  const Value x = l.in(0);
  const Sorted s =
      sorted(x, wrap_dim(l.integer(dim_arg), x.rank()), l.flag(descending_arg), l.target());
  return {s.values, s.indices};
}

Values sort(Lowering& l) { return sort_by(l, 1, 2); }
Values sort_stable(Lowering& l) { return sort_by(l, 2, 3); }

// Returns whether f32 holds every value of this type and keeps their order.
bool exact_in_f32(DType dtype) {
  return dtype == DType::Pred || (hlo::is_float(dtype) && hlo::bit_width(dtype) <= 32) ||
         (hlo::is_integer(dtype) && hlo::bit_width(dtype) <= 16);
}

Values topk(Lowering& l) {
  const Value x = l.in(0);
  const int64_t k = l.integer(1), dim = wrap_dim(l.integer(2), x.rank());
  const bool largest = l.flag(3);
  if (l.out().elements() == 0) return {hlo::zero(l.b, l.out(0)), hlo::zero(l.b, l.out(1))};
  if (x.rank() == 0) return {x, hlo::zero(l.b, l.out(1))};
  // Choosing nearly all of them is sorting.
  if (!exact_in_f32(x.dtype()) || k * 4 > x.dim(dim)) {
    const Sorted s = sorted(x, dim, largest, l.target());
    return {hlo::slice_dim(s.values, dim, 0, k), hlo::slice_dim(s.indices, dim, 0, k)};
  }
  const int64_t last = x.rank() - 1;
  const Value moved = hlo::convert(move_dim(x, dim, last), DType::F32);
  // top_k orders by bits: a nan of the right sign is the greatest here, the least when negated.
  const Value nan = hlo::like(moved, std::numeric_limits<double>::quiet_NaN());
  const Value chosen = hlo::select(hlo::is_nan(moved), nan, moved);
  const Value operand = largest ? chosen : hlo::neg(chosen);
  Dims dims = operand.dims();
  dims[last] = k;
  const std::array<hlo::Type, 2> types = {hlo::Type{DType::F32, dims}, {DType::S32, dims}};
  const Values r =
      l.b.op("chlo.top_k", std::span<const Value>(&operand, 1), types, {{"k", hlo::attr::i64(k)}});
  const Value values = cast(largest ? r[0] : hlo::neg(r[0]), x.dtype());
  return {move_dim(values, last, dim), move_dim(hlo::convert(r[1], DType::S64), last, dim)};
}

// --- order statistics ----------------------------------------------------------------------

// Element `position` (one for each row, or the same for all) along the last dimension.
Value at(const Value& x, const Value& position, const Target& target) {
  return take_along(x, x.rank() - 1, position, target);
}

// Rows to choose from in the last dimension, and where its choices go back to.
struct Rows {
  Value x;
  int64_t dim, last;
  Rows(const Lowering& l, size_t dim_arg) {
    const Value in = l.in(0);
    const Value shaped = at_least_1d(in);
    dim = wrap_dim(l.integer(dim_arg), shaped.rank());
    last = shaped.rank() - 1;
    x = move_dim(shaped, dim, last);
  }
  int64_t length() const { return x.dim(last); }
  Dims one_each() const {
    Dims dims = x.dims();
    dims[last] = 1;
    return dims;
  }
  Value back(const Value& y) const { return move_dim(y, last, dim); }
};

// The choice from a single element, which may be complex.
Values only_element(const Lowering& l) { return {l.in(0), hlo::zero(l.b, l.out(1))}; }

Values kthvalue(Lowering& l) {
  if (l.in(0).rank() == 0) return only_element(l);
  const int64_t k = l.integer(1);
  const Rows rows(l, 2);
  if (l.out().elements() == 0) return {hlo::zero(l.b, l.out(0)), hlo::zero(l.b, l.out(1))};
  const Sorted s = sorted(rows.x, rows.last, false, l.target());
  const auto pick = [&](const Value& v) {
    return rows.back(hlo::slice_dim(v, rows.last, k - 1, k));
  };
  return pair(l, pick(s.values), pick(s.indices));
}

// The lower median along the last dimension. A nan is the median of its row unless it is ignored;
// nans stand at the end, so the first of them follows the numbers.
Sorted median_of(const Value& x, bool ignore_nan, const Target& target) {
  hlo::Builder& b = x.builder();
  const int64_t last = x.rank() - 1, n = x.dim(last);
  const Sorted s = sorted(x, last, false, target);
  if (!hlo::is_float(x.dtype())) {
    const int64_t middle = (n - 1) / 2;
    return {hlo::slice_dim(s.values, last, middle, middle + 1),
            hlo::slice_dim(s.indices, last, middle, middle + 1)};
  }
  const Dims along = {last};
  const Value numbers =
      insert_dim(reduce_sum(hlo::convert(~hlo::is_nan(x), DType::S64), along), last);
  const auto constant = [&](int64_t v) { return hlo::splat_int(b, v, numbers.type()); };
  const Value position =
      ignore_nan ? hlo::max((numbers - constant(1)) / constant(2), constant(0))
                 : hlo::select(hlo::less(numbers, constant(n)), numbers, constant((n - 1) / 2));
  return {at(s.values, position, target), at(s.indices, position, target)};
}

template <bool IgnoreNan>
Values median(Lowering& l) {
  const Value x = flatten(l.in(0));
  if (x.dim(0) == 0) {
    // nan as PyTorch converts it.
    const DType dtype = x.dtype();
    if (dtype == DType::S64 || dtype == DType::S32) return {hlo::lowest(l.b, l.out())};
    const double none = hlo::is_float(dtype) ? std::numeric_limits<double>::quiet_NaN() : 0;
    return {hlo::splat(l.b, none, l.out())};
  }
  return {hlo::reshape(median_of(x, IgnoreNan, l.target()).values, l.out().dims)};
}

template <bool IgnoreNan>
Values median_dim(Lowering& l) {
  const Rows rows(l, 1);
  if (l.out().elements() == 0) return {hlo::zero(l.b, l.out(0)), hlo::zero(l.b, l.out(1))};
  const Sorted s = median_of(rows.x, IgnoreNan, l.target());
  return pair(l, rows.back(s.values), rows.back(s.indices));
}

// The most frequent value, the smallest of several, and the last position that holds it.
Values mode(Lowering& l) {
  if (l.in(0).rank() == 0) return only_element(l);
  const Rows rows(l, 1);
  if (l.out().elements() == 0) return {hlo::zero(l.b, l.out(0)), hlo::zero(l.b, l.out(1))};
  const Sorted s = sorted(rows.x, rows.last, false, l.target());
  const int64_t n = rows.length();
  const hlo::Type positions = rows.x.type().with(DType::S64);
  const Value here = hlo::iota(l.b, positions, rows.last);
  // Where each run of equal values starts, known to all of its elements.
  const Value before =
      hlo::concatenate(std::array<Value, 2>{hlo::slice_dim(s.values, rows.last, 0, 1),
                                            hlo::slice_dim(s.values, rows.last, 0, n - 1)},
                       rows.last);
  const Value starts = hlo::select(hlo::not_equal(s.values, before), here, 0);
  const Value length_so_far = here - running_max(starts, rows.last);
  const Dims along = {rows.last};
  const Value longest = insert_dim(reduce_max(length_so_far, along), rows.last);
  const Value is_longest = hlo::equal(
      length_so_far, hlo::broadcast_in_dim(longest, positions.dims, all_dims(rows.x.rank())));
  const Value end = insert_dim(
      reduce_min(hlo::select(is_longest, here, static_cast<double>(n)), along), rows.last);
  return pair(l, rows.back(at(s.values, end, l.target())),
              rows.back(at(s.indices, end, l.target())));
}

// (self, k, dim, keepdim)
void kthvalue_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const int64_t k = call[1].toInt(), last = x.dim() == 0 ? 1 : x.size(call[2].toInt());
  if (k < 1 || k > last) return call.pytorch();
  value_and_position<2>(call);
}

// (self, ..)
void check_sort(const Arguments& a) {
  TORCH_CHECK(!a.tensor(0).is_complex(), " Sort does not support complex dtypes on CPU");
}

}  // namespace

namespace rules {

const RuleFunction median_of_all = ops::median<false>;
const RuleFunction nanmedian_of_all = ops::median<true>;
const RuleFunction median_along = ops::median_dim<false>;
const RuleFunction nanmedian_along = ops::median_dim<true>;

}  // namespace rules

const Rules sort_rules([](Registry& r) {
  r.add("aten::sort", sort);
  r.add("aten::sort.stable", sort_stable);
  r.add("aten::topk", topk);
  r.add("aten::kthvalue", kthvalue);
  r.add("aten::mode", mode);

  r.all("aten::kthvalue").meta = kthvalue_meta;
  r.all("aten::sort").checks_call = check_sort;
});

}  // namespace torch_xla::ops
