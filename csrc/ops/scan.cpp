// Running sums, products and extremes along one dimension.
// StableHLO has no scan, and a window as long as the dimension costs O(n^2): these run in blocks,
// log2(block) steps inside each, and then scan the blocks' totals the same way.
#include "ops/scan.h"

#include <limits>

#include "ops/common.h"
#include "ops/rules.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

constexpr int64_t kBlock = 16;

// Element i becomes element i - by; the first ones become the neutral element.
Value shifted(const Value& x, const Value& neutral, int64_t dim, int64_t by) {
  Dims low(x.rank(), 0), high(x.rank(), 0), interior(x.rank(), 0);
  low[dim] = by;
  high[dim] = -by;
  return hlo::pad(x, neutral, low, high, interior);
}

Values shifted(const Values& xs, const Values& neutral, int64_t dim, int64_t by) {
  Values out;
  for (size_t i = 0; i < xs.size(); ++i) out.push_back(shifted(xs[i], neutral[i], dim, by));
  return out;
}

// Each step doubles the reach of every element.
Values scan_block(Values xs, const Values& neutral, int64_t dim, const Join& join) {
  for (int64_t reach = 1; reach < xs[0].dim(dim); reach *= 2) {
    xs = join(shifted(xs, neutral, dim, reach), xs);
  }
  return xs;
}

Values scan(const Values& xs, const Values& neutral, int64_t dim, const Join& join) {
  if (xs[0].builder().lacks().fixed_sizes) return scan_in_loop(xs, neutral, dim, join);
  const int64_t n = xs[0].dim(dim);
  const int64_t rank = xs[0].rank();
  if (n <= 2 * kBlock) return scan_block(xs, neutral, dim, join);

  const int64_t blocks = (n + kBlock - 1) / kBlock;
  Dims blocked = xs[0].dims();
  blocked[dim] = blocks;
  blocked.insert(blocked.begin() + dim + 1, kBlock);
  Dims low(rank, 0), high(rank, 0), interior(rank, 0);
  high[dim] = blocks * kBlock - n;
  Values inner;
  for (size_t i = 0; i < xs.size(); ++i) {
    inner.push_back(hlo::reshape(hlo::pad(xs[i], neutral[i], low, high, interior), blocked));
  }
  inner = scan_block(inner, neutral, dim + 1, join);

  Dims per_block = xs[0].dims();
  per_block[dim] = blocks;
  Values totals;
  for (const Value& x : inner) {
    totals.push_back(hlo::reshape(hlo::slice_dim(x, dim + 1, kBlock - 1, kBlock), per_block));
  }
  const Values before = shifted(scan(totals, neutral, dim, join), neutral, dim, 1);
  Values carried;
  const std::vector<int64_t> block_dim = {dim + 1};
  for (const Value& x : before) carried.push_back(spread(x, blocked, block_dim));
  const Values joined = join(carried, inner);

  Values out;
  Dims padded = xs[0].dims();
  padded[dim] = blocks * kBlock;
  for (const Value& x : joined) {
    out.push_back(hlo::slice_dim(hlo::reshape(x, padded), dim, 0, n));
  }
  return out;
}

// --- rules -------------------------------------------------------------------------------------

template <hlo::Value (*combine)(const Value&, const Value&)>
Values cumulative(Lowering& l, const Value& neutral) {
  const Value x = cast(l.in(0), neutral.dtype());
  const int64_t dim = wrap_dim(l.integer(1), x.rank());
  if (x.rank() == 0 || x.type().elements() == 0) return result(l, x);
  const Join join = [](std::span<const Value> a, std::span<const Value> b) {
    return Values{combine(a[0], b[0])};
  };
  return result(l, scan({x}, {neutral}, dim, join)[0]);
}

Values cumsum(Lowering& l) {
  return cumulative<hlo::add>(l, hlo::scalar(l.b, 0, compute_dtype(l.out().dtype)));
}
Values cumprod(Lowering& l) {
  return cumulative<hlo::mul>(l, hlo::scalar(l.b, 1, compute_dtype(l.out().dtype)));
}

Values logcumsumexp(Lowering& l) {
  const hlo::Type type = {compute_dtype(l.out().dtype), {}};
  return cumulative<log_add>(l, hlo::splat(l.b, -std::numeric_limits<double>::infinity(), type));
}

// Values and positions; of equals the later one, and nan for good once it has appeared.
template <hlo::Direction direction>
Values cumulative_extreme(Lowering& l) {
  const Value x = l.in(0);
  const int64_t dim = wrap_dim(l.integer(1), x.rank());
  if (x.rank() == 0 || x.type().elements() == 0) {
    return {as_result(l, x, 0), hlo::zero(l.b, l.out(1))};
  }
  const Join join = [](std::span<const Value> a, std::span<const Value> b) {
    Value later = hlo::compare(direction, b[0], a[0]);
    if (hlo::is_float(b[0].dtype())) {
      later = hlo::is_nan(b[0]) | (later & ~hlo::is_nan(a[0]));
    }
    return Values{hlo::select(later, b[0], a[0]), hlo::select(later, b[1], a[1])};
  };
  const hlo::Type scalar = {x.dtype(), {}};
  const Value neutral =
      direction == hlo::Direction::GE ? hlo::lowest(l.b, scalar) : hlo::highest(l.b, scalar);
  const DType index = x.dim(dim) <= std::numeric_limits<int32_t>::max() ? DType::S32 : DType::S64;
  const Values scanned = scan({x, hlo::iota(l.b, x.type().with(index), dim)},
                              {neutral, hlo::scalar_int(l.b, 0, index)}, dim, join);
  return {as_result(l, scanned[0], 0), as_result(l, scanned[1], 1)};
}

}  // namespace

// The steps of a block, of any size: each doubles the reach of every element.
Values scan_in_loop(const Values& xs, const Values& neutral, int64_t dim, const Join& join) {
  hlo::Builder& b = xs[0].builder();
  const auto size = [&] { return hlo::scalar_int(b, xs[0].dim(dim), DType::S64); };
  Values state = {hlo::scalar_int(b, 1, DType::S64)};  // the reach, then the elements
  state.insert(state.end(), xs.begin(), xs.end());
  const auto step = [&](std::span<const Value> now) {
    Values before;
    for (size_t i = 1; i < now.size(); ++i) {
      const Value all = hlo::broadcast_to(neutral[i - 1], now[i].dims());
      Values starts(static_cast<size_t>(now[i].rank()), hlo::scalar_int(b, 0, DType::S64));
      starts[dim] = size() - now[0];
      before.push_back(
          hlo::dynamic_slice(hlo::concatenate(Values{all, now[i]}, dim), starts, now[i].dims()));
    }
    Values next = join(before, now.subspan(1));
    // XLA takes a counter that is added to for one of constant steps, and aborts where it is not.
    next.insert(next.begin(), now[0] * hlo::scalar_int(b, 2, DType::S64));
    return next;
  };
  Values last = hlo::while_loop(
      state, [&](std::span<const Value> now) { return hlo::less(now[0], size()); }, step);
  last.erase(last.begin());
  return last;
}

// cummax and cummin are composites recorded whole on purpose: theirs write through raw pointers.
namespace rules {

const RuleFunction cumprod = ops::cumprod;

}  // namespace rules

const Rules scan_rules([](Registry& r) {
  r.add("aten::cumsum", cumsum);
  r.add("aten::logcumsumexp", logcumsumexp);
  r.add("aten::cummax", cumulative_extreme<hlo::Direction::GE>);
  r.add("aten::cummin", cumulative_extreme<hlo::Direction::LE>);

  r.all("aten::cumsum").dtype_of_out = true;
  for (const char* name : {"aten::cummax", "aten::cummin", "aten::logcumsumexp"}) {
    r.all(name).python_meta = true;  // the C++ code calls a kernel of the CPU
  }
});

}  // namespace torch_xla::ops
