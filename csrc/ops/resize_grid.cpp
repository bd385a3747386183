// Sampling at positions that are data: grid_sampler in two and three dimensions with its gradients,
// and the affine grids that feed it.
#include <algorithm>
#include <array>
#include <limits>

#include <c10/util/accumulate.h>

#include "ops/common.h"
#include "ops/meta.h"
#include "ops/pool.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

enum Interpolation { kBilinear = 0, kNearest = 1, kBicubic = 2 };
enum Padding { kZeros = 0, kBorder = 1, kReflection = 2 };

struct Options {
  int64_t interpolation, padding;
  bool align_corners;
};

// A position along one axis and its derivative by what it was computed from.
struct Position {
  Value at, slope;
};

Position clipped(const Position& p, int64_t size) {
  const double last = static_cast<double>(size - 1);
  const Value low = ~hlo::greater(p.at, 0), high = hlo::greater_equal(p.at, last);  // nan: low
  return {hlo::select(low, 0, hlo::select(high, last, p.at)), hlo::select(low | high, 0, p.slope)};
}

// Folds positions back and forth between two bounds, which are given doubled.
Position reflected(const Position& p, int64_t twice_low, int64_t twice_high) {
  if (twice_low == twice_high) return {hlo::like(p.at, 0), hlo::like(p.at, 0)};
  const double low = static_cast<double>(twice_low) / 2;
  const double span = static_cast<double>(twice_high - twice_low) / 2;
  const Value shifted = p.at - low;
  const Value distance = hlo::abs(shifted);
  const Value rest = hlo::rem(distance, hlo::like(distance, span));
  const Value flips = hlo::floor(distance / span);
  const Value even = hlo::equal(hlo::rem(flips, hlo::like(flips, 2)), 0);
  const Value sign = hlo::select(hlo::less(shifted, 0), -p.slope, p.slope);
  return {hlo::select(even, rest + low, (span + low) - rest), hlo::select(even, sign, -sign)};
}

Position padded(const Position& p, int64_t size, const Options& o) {
  if (o.padding == kZeros) return p;
  if (o.padding == kBorder) return clipped(p, size);
  return clipped(o.align_corners ? reflected(p, 0, 2 * (size - 1)) : reflected(p, -1, 2 * size - 1),
                 size);
}

// One of the elements that a sample reads along an axis: its index (a whole float that may lie
// outside), its weight and the derivative of the weight by the position.
struct SampledTap {
  Value index, weight, weight_slope;
};

struct SampledAxis {
  int64_t size;
  std::vector<SampledTap> taps;
  Value slope;      // of the position, by the grid's number
  Value undefined;  // where a sample has no weights, if it may; PyTorch gives nan there
};

// PyTorch's cubic with coefficient -0.75, by the distance from the sample.
Value cubic(const Value& x, bool near) {
  constexpr double c = -0.75;
  if (near) return ((c + 2) * x - (c + 3)) * x * x + 1;
  return ((c * x - 5 * c) * x + 8 * c) * x - 4 * c;
}
Value cubic_slope(const Value& x, bool near) {
  constexpr double c = -0.75;
  if (near) return (3 * (c + 2) * x - 2 * (c + 3)) * x;
  return (3 * c * x - 10 * c) * x + 8 * c;
}

SampledAxis axis(const Value& coordinate, int64_t size, const Options& o) {
  const double extent = static_cast<double>(size);
  Position p;
  if (o.align_corners) {
    p = {(coordinate + 1) / 2 * (extent - 1), hlo::like(coordinate, (extent - 1) / 2)};
  } else {
    p = {((coordinate + 1) * extent - 1) / 2, hlo::like(coordinate, extent / 2)};
  }
  SampledAxis a{.size = size, .taps = {}, .slope = {}, .undefined = {}};
  const bool may_be_undefined = o.interpolation == kBicubic || o.padding == kZeros;
  if (may_be_undefined && o.interpolation != kNearest) a.undefined = ~hlo::is_finite(p.at);
  const Value one = hlo::like(coordinate, 1), zero = hlo::like(coordinate, 0);
  if (o.interpolation == kBicubic) {
    const Value base = hlo::floor(p.at);
    const Value t = p.at - base;
    const std::array distance = {t + 1, t, 1 - t, 2 - t};
    for (int k = 0; k < 4; ++k) {
      const bool near = k == 1 || k == 2;
      const Value slope = cubic_slope(distance[k], near);
      a.taps.push_back({padded({base + (k - 1), one}, size, o).at, cubic(distance[k], near),
                        k < 2 ? slope : -slope});
    }
    a.slope = p.slope;
    return a;
  }
  p = padded(p, size, o);
  a.slope = p.slope;
  if (o.interpolation == kNearest) {
    a.taps.push_back({hlo::unary("round_nearest_even", p.at), one, zero});
    return a;
  }
  const Value base = hlo::floor(p.at);
  const Value upper = p.at - base;
  a.taps.push_back({base, 1 - upper, -one});
  a.taps.push_back({base + 1, upper, one});
  return a;
}

// The call's arguments in one form: batch [N], channels [C], flat spatial positions, samples [P].
struct Sampling {
  Value input;  // [N, C, spatial], in the compute dtype
  int64_t batch, channels, spatial, samples;
  std::vector<SampledAxis> axes;  // by spatial dimension
};

Sampling sampling(const Lowering& l, size_t input_arg, size_t n) {
  const Value x = l.in(input_arg), grid = l.in(input_arg + 1);
  const DType compute = compute_dtype(x.dtype());
  const Options o{l.integer(input_arg + 2), l.integer(input_arg + 3), l.flag(input_arg + 4)};
  Sampling s;
  s.batch = x.dim(0);
  s.channels = x.dim(1);
  s.spatial = s.samples = 1;
  for (size_t i = 0; i < n; ++i) {
    s.spatial *= x.dim(2 + i);
    s.samples *= grid.dim(1 + i);
  }
  s.input = hlo::reshape(hlo::convert(x, compute), {s.batch, s.channels, s.spatial});
  const Value flat =
      hlo::reshape(hlo::convert(grid, compute), {s.batch, s.samples, static_cast<int64_t>(n)});
  for (size_t i = 0; i < n; ++i) {
    const int64_t k = n - 1 - i;  // the grid counts axes from the last
    const Value coordinate = hlo::reshape(hlo::slice_dim(flat, 2, k, k + 1), {s.batch, s.samples});
    s.axes.push_back(axis(computed_once(l, coordinate, flat), x.dim(2 + i), o));
  }
  return s;
}

// One combination of taps, one per axis: where it reads, whether that is in the input.
struct Corner {
  std::vector<size_t> tap;
  Value position;  // [N, P] S32 or S64, zero where outside
  Value inside;    // [N, P]
};

std::vector<Corner> corners(const Sampling& s) {
  const DType index = s.spatial * s.batch * s.channels < std::numeric_limits<int32_t>::max()
                          ? DType::S32
                          : DType::S64;
  std::vector<Corner> all;
  std::vector<size_t> tap(s.axes.size(), 0);
  while (true) {
    Corner c{.tap = tap, .position = {}, .inside = {}};
    for (size_t i = 0; i < s.axes.size(); ++i) {
      const Value& at = s.axes[i].taps[tap[i]].index;
      const Value here =
          hlo::greater_equal(at, 0) & hlo::less(at, static_cast<double>(s.axes[i].size));
      c.inside = i == 0 ? here : (c.inside & here);
    }
    for (size_t i = 0; i < s.axes.size(); ++i) {
      const Value at = hlo::convert(hlo::select(c.inside, s.axes[i].taps[tap[i]].index, 0), index);
      c.position = i == 0 ? at : c.position * static_cast<double>(s.axes[i].size) + at;
    }
    all.push_back(std::move(c));
    size_t i = s.axes.size();
    while (i-- > 0) {
      if (++tap[i] < s.axes[i].taps.size()) break;
      tap[i] = 0;
    }
    if (i == static_cast<size_t>(-1)) return all;
  }
}

// The weight of a corner [N, P]; with `by` given, its derivative by the position along that axis.
Value weight(const Sampling& s, const Corner& c, int64_t by = -1) {
  Value w;
  for (size_t i = 0; i < s.axes.size(); ++i) {
    const SampledTap& tap = s.axes[i].taps[c.tap[i]];
    const Value& factor = static_cast<int64_t>(i) == by ? tap.weight_slope : tap.weight;
    w = i == 0 ? factor : w * factor;
  }
  return hlo::select(c.inside, w, 0);
}

Dims full(const Sampling& s) { return {s.batch, s.channels, s.samples}; }
Value over_channels(const Sampling& s, const Value& x) {
  return hlo::broadcast_in_dim(x, full(s), std::array<int64_t, 2>{0, 2});
}

// Input elements at a corner: [N, C, P].
Value read(const Sampling& s, const Corner& c) {
  const hlo::GatherDims dims{.offset_dims = {1},
                             .collapsed_slice_dims = {2},
                             .operand_batching_dims = {0},
                             .start_indices_batching_dims = {0},
                             .start_index_map = {2},
                             .index_vector_dim = 2};
  return hlo::gather(s.input, hlo::reshape(c.position, {s.batch, s.samples, 1}), dims,
                     Dims{1, s.channels, 1}, s.input.type().with(full(s)));
}

template <size_t n>
Values grid_sampler(Lowering& l) {
  if (l.out().elements() == 0 || l.in(0).type().elements() == 0) return {hlo::zero(l.b, l.out())};
  const Sampling s = sampling(l, 0, n);
  Value sum;
  for (const Corner& c : corners(s)) {
    // A point outside counts as zero, also where the element read in its place is not finite.
    const Value term =
        hlo::select(over_channels(s, c.inside), read(s, c) * over_channels(s, weight(s, c)), 0);
    sum = sum ? sum + term : term;
  }
  // In three dimensions its kernel compares positions only.
  for (size_t i = 0; n == 2 && i < n; ++i) {
    if (const Value& undefined = s.axes[i].undefined) {
      sum = hlo::select(over_channels(s, undefined), std::numeric_limits<double>::quiet_NaN(), sum);
    }
  }
  return result(l, hlo::reshape(sum, l.out().dims));
}

Value input_gradient(const Sampling& s, const Value& grad) {
  hlo::Builder& b = grad.builder();
  const int64_t total = s.batch * s.channels * s.spatial;
  const int64_t updates = s.batch * s.channels * s.samples;
  Value sums = hlo::zero(b, {grad.dtype(), {total}});
  const hlo::ScatterDims dims{.update_window_dims = {},
                              .inserted_window_dims = {0},
                              .input_batching_dims = {},
                              .scatter_indices_batching_dims = {},
                              .scatter_dims_to_operand_dims = {0},
                              .index_vector_dim = 1};
  for (const Corner& c : corners(s)) {
    const hlo::Type index{c.position.dtype(), full(s)};
    const Value plane =
        hlo::iota(b, index, 0) * static_cast<double>(s.channels) + hlo::iota(b, index, 1);
    const Value flat = plane * static_cast<double>(s.spatial) + over_channels(s, c.position);
    // An index past the end: the scatter drops it.
    const Value target =
        hlo::select(over_channels(s, c.inside), flat, hlo::splat_int(b, total, index));
    sums = hlo::scatter(sums, hlo::reshape(target, {updates, 1}),
                        hlo::reshape(grad * over_channels(s, weight(s, c)), {updates}), dims,
                        hlo::add);
  }
  return sums;
}

Value grid_gradient(const Sampling& s, const Value& grad) {
  const std::vector<Corner> all = corners(s);
  Values by_axis;  // in the grid's order
  for (size_t i = s.axes.size(); i-- > 0;) {
    Value sum;
    for (const Corner& c : all) {
      const Value term = hlo::select(over_channels(s, c.inside),
                                     read(s, c) * over_channels(s, weight(s, c, i)), 0);
      sum = sum ? sum + term : term;
    }
    const Value slope = reduce_sum(sum * grad, std::array<int64_t, 1>{1}) * s.axes[i].slope;
    by_axis.push_back(hlo::reshape(slope, {s.batch, s.samples, 1}));
  }
  return hlo::concatenate(by_axis, 2);
}

// (grad_output, input, grid, interpolation, padding, align_corners, output_mask)
template <size_t n>
Values grid_sampler_backward(Lowering& l) {
  const bool nothing = l.in(0).type().elements() == 0 || l.in(1).type().elements() == 0;
  Values grads(2);
  if (nothing) {
    for (size_t i = 0; i < 2; ++i) grads[i] = hlo::scalar(l.b, 0, l.in(1 + i).dtype());
  } else {
    const Sampling s = sampling(l, 1, n);
    const Value grad = hlo::reshape(hlo::convert(l.in(0), s.input.dtype()), full(s));
    if (is_wanted(l, 0)) grads[0] = hlo::reshape(input_gradient(s, grad), l.in(1).dims());
    if (is_wanted(l, 1)) {
      const bool flat = l.integer(3) == kNearest;  // steps: no slope anywhere
      grads[1] = flat ? hlo::zero(l.b, l.in(2).type())
                      : hlo::reshape(grid_gradient(s, grad), l.in(2).dims());
    }
  }
  return results(l, grads);
}

// theta [N, n, n+1] applied to the positions of a grid over [-1, 1]: [N, spatial.., n].
Values affine_grid(Lowering& l) {
  const Value theta = l.in(0);
  const DType compute = compute_dtype(theta.dtype());
  const hlo::Type out{compute, l.out().dims};
  const int64_t n = out.rank() - 2;
  const bool align_corners = l.flag(2);
  const Value matrix = hlo::convert(theta, compute);
  const auto column = [&](int64_t k) {  // [N, n] -> the shape of the result
    const Value c = hlo::reshape(hlo::slice_dim(matrix, 2, k, k + 1), {theta.dim(0), n});
    return hlo::broadcast_in_dim(c, out.dims, std::array<int64_t, 2>{0, n + 1});
  };
  Value sum = column(n);
  for (int64_t k = 0; k < n; ++k) {
    const int64_t d = n - k;  // the grid counts axes from the last
    const int64_t steps = out.dims[d];
    std::vector<double> places(steps, 0.0);
    for (int64_t i = 0; i < steps && steps > 1; ++i) {
      const double even = -1.0 + 2.0 * static_cast<double>(i) / static_cast<double>(steps - 1);
      places[i] =
          align_corners ? even : even * static_cast<double>(steps - 1) / static_cast<double>(steps);
    }
    const Value along = hlo::broadcast_in_dim(hlo::dense_floats(l.b, places, {compute, {steps}}),
                                              out.dims, std::array<int64_t, 1>{d});
    sum = sum + along * column(k);
  }
  return result(l, sum);
}

template <int64_t n>
bool can_sample(const at::Tensor& x, const at::Tensor& grid, int64_t interpolation) {
  return x.is_floating_point() && grid.scalar_type() == x.scalar_type() && x.dim() == n + 2 &&
         grid.dim() == n + 2 && grid.size(0) == x.size(0) && grid.size(-1) == n &&
         c10::multiply_integers(x.sizes().slice(2)) != 0 && (n == 2 || interpolation != kBicubic);
}

// (input, grid, interpolation_mode, padding_mode, align_corners)
template <int64_t n>
void grid_sampler_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0), grid = call.tensor(1);
  if (!can_sample<n>(x, grid, call[2].toInt())) return call.pytorch();
  std::vector<int64_t> sizes = grid.sizes().vec();
  sizes.pop_back();
  sizes.insert(sizes.begin() + 1, x.size(1));
  call.results({meta_of_sizes(x, sizes)});
}

// (grad_output, input, grid, interpolation_mode, padding_mode, align_corners, output_mask)
template <int64_t n>
void grid_sampler_backward_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(1), grid = call.tensor(2);
  if (!can_sample<n>(x, grid, call[3].toInt())) return call.pytorch();
  const bool wanted = call[6].toBoolList().get(0);
  call.results({wanted ? meta_of_sizes(x, x.sizes().vec()) : at::Tensor(),
                meta_of_sizes(grid, grid.sizes().vec())});
}

}  // namespace

const Rules resize_grid_rules([](Registry& r) {
  r.add("aten::grid_sampler_2d", grid_sampler<2>);
  r.add("aten::grid_sampler_3d", grid_sampler<3>);
  r.add("aten::grid_sampler_2d_backward", grid_sampler_backward<2>);
  r.add("aten::grid_sampler_3d_backward", grid_sampler_backward<3>);
  r.add("aten::affine_grid_generator", affine_grid);

  r.all("aten::grid_sampler_2d").meta = grid_sampler_meta<2>;
  r.all("aten::grid_sampler_3d").meta = grid_sampler_meta<3>;
  r.all("aten::grid_sampler_2d_backward").meta = grid_sampler_backward_meta<2>;
  r.all("aten::grid_sampler_3d_backward").meta = grid_sampler_backward_meta<3>;
});

}  // namespace torch_xla::ops
