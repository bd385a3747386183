// Adaptive maxima: windows of unequal sizes, reduced along one dimension at a time.
#include <algorithm>
#include <array>

#include "ops/common.h"
#include "ops/pool.h"
#include "ops/resize_taps.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

struct WindowMaxima {
  Value values, positions;
};

WindowMaxima better_of(const WindowMaxima& a, const WindowMaxima& b) {
  const Value better = hlo::greater(b.values, a.values) | hlo::is_nan(b.values);
  return {hlo::select(better, b.values, a.values), hlo::select(better, b.positions, a.positions)};
}

WindowMaxima reduce_slice(const WindowMaxima& m, int64_t dim, int64_t from, int64_t to) {
  hlo::Builder& b = m.values.builder();
  const std::array operands = {hlo::slice_dim(m.values, dim, from, to),
                               hlo::slice_dim(m.positions, dim, from, to)};
  const std::array inits = {hlo::lowest(b, {m.values.dtype(), {}}),
                            hlo::highest(b, {m.positions.dtype(), {}})};
  const Values r = hlo::reduce(
      operands, inits, std::array{dim}, [](std::span<const Value> a, std::span<const Value> e) {
        const Value tie = hlo::equal(e[0], a[0]) & hlo::less(e[1], a[1]);
        const Value nan = hlo::is_nan(e[0]) & ((~hlo::is_nan(a[0])) | hlo::greater(e[1], a[1]));
        const Value better = hlo::greater(e[0], a[0]) | tie | nan;
        return Values{hlo::select(better, e[0], a[0]), hlo::select(better, e[1], a[1])};
      });
  Dims one = operands[0].dims();
  one[dim] = 1;
  return {hlo::reshape(r[0], one), hlo::reshape(r[1], one)};
}

WindowMaxima along(const WindowMaxima& m, int64_t dim, int64_t outputs) {
  const int64_t inputs = m.values.dim(dim);
  std::vector<int64_t> from(outputs), to(outputs);
  int64_t longest = 0;
  for (int64_t o = 0; o < outputs; ++o) {
    from[o] = o * inputs / outputs;
    to[o] = ((o + 1) * inputs + outputs - 1) / outputs;
    longest = std::max(longest, to[o] - from[o]);
  }
  if (longest <= 1 && inputs == outputs) return m;

  if (longest > outputs) {  // a few long windows: one reduction each
    Values values, positions;
    for (int64_t o = 0; o < outputs; ++o) {
      const WindowMaxima part = reduce_slice(m, dim, from[o], to[o]);
      values.push_back(part.values);
      positions.push_back(part.positions);
    }
    return {hlo::concatenate(values, dim), hlo::concatenate(positions, dim)};
  }
  // Many short windows: one pass for each place in the window. Short ones repeat their last place.
  WindowMaxima best;
  for (int64_t t = 0; t < longest; ++t) {
    std::vector<int64_t> places(outputs);
    for (int64_t o = 0; o < outputs; ++o) places[o] = std::min(from[o] + t, to[o] - 1);
    const WindowMaxima here{take_fixed(m.values, dim, places),
                            take_fixed(m.positions, dim, places)};
    best = t == 0 ? here : better_of(best, here);
  }
  return best;
}

template <size_t n>
Values adaptive_max_pool(Lowering& l) {
  const Value x = l.in(0);
  const hlo::Type out = l.out(0);
  if (out.elements() == 0) return {hlo::zero(l.b, out), hlo::zero(l.b, l.out(1))};
  const int64_t lead = x.rank() - n;
  const Dims spatial(x.dims().begin() + lead, x.dims().end());
  const int64_t count = hlo::Type{DType::S32, spatial}.elements();
  const DType index = count < (int64_t{1} << 31) ? DType::S32 : DType::S64;
  std::vector<int64_t> mapping;
  for (size_t i = 0; i < n; ++i) mapping.push_back(lead + i);
  WindowMaxima m{
      x, hlo::broadcast_in_dim(hlo::reshape(hlo::iota(l.b, {index, {count}}, 0), spatial), x.dims(),
                               mapping)};
  // The last dimension first: this finds the first maximum in row-major order.
  for (int64_t dim = x.rank(); dim-- > lead;) m = along(m, dim, out.dims[dim]);
  return {m.values, hlo::convert(m.positions, DType::S64)};
}

template <size_t n>
Values adaptive_max_pool_backward(Lowering& l) {
  return result(l, scatter_to_positions(l.in(0), l.in(2), l.out(), n, false));
}

}  // namespace

const Rules pool_adaptive_max_rules([](Registry& r) {
  r.add("aten::adaptive_max_pool2d", adaptive_max_pool<2>);
  r.add("aten::adaptive_max_pool3d", adaptive_max_pool<3>);
  r.add("aten::adaptive_max_pool2d_backward", adaptive_max_pool_backward<2>);
  r.add("aten::adaptive_max_pool3d_backward", adaptive_max_pool_backward<3>);
});

}  // namespace torch_xla::ops
