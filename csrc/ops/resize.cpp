// Interpolation to another size. Positions and weights depend on sizes only: they are computed
// here, in the arithmetic PyTorch uses, and become constants of the program.
#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "ops/common.h"
#include "ops/on_host.h"
#include "ops/resize_taps.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

// One dimension to resize. `scale` is the factor the user gave, if any: it, and not the ratio of
// the sizes, then fixes the positions.
struct Axis {
  int64_t in, out;
  bool align_corners;
  std::optional<double> scale;
};

// `real` is the type in which PyTorch computes positions: float except for f64 tensors.
template <typename real>
real ratio_of_sizes(const Axis& a) {
  if (a.scale && *a.scale > 0) return static_cast<real>(1.0 / *a.scale);
  return static_cast<real>(a.in) / static_cast<real>(a.out);
}

template <typename real>
real ratio(const Axis& a) {
  if (!a.align_corners) return ratio_of_sizes<real>(a);
  return a.out > 1 ? static_cast<real>(a.in - 1) / static_cast<real>(a.out - 1) : real{0};
}

template <typename real>
real source(const Axis& a, int64_t o, bool may_be_negative) {
  const real r = ratio<real>(a);
  if (a.align_corners) return r * static_cast<real>(o);
  const real position = r * (static_cast<real>(o) + real{0.5}) - real{0.5};
  return !may_be_negative && position < 0 ? real{0} : position;
}

Taps sized(const Axis& a) {
  Taps taps{.inputs = a.in, .outputs = {}};
  taps.outputs.resize(a.out);
  return taps;
}

// Taps at one index become one; a tap that weighs nothing is none.
void add_tap(std::vector<Tap>& output, int64_t index, double weight) {
  if (weight == 0) return;
  if (!output.empty() && output.back().index == index) {
    output.back().weight += weight;
  } else {
    output.push_back({index, weight});
  }
}

// PyTorch computes nearest positions in float whatever the dtype.
template <bool exact>
Taps nearest(const Axis& a) {
  Taps taps = sized(a);
  const float scale = ratio_of_sizes<float>(a);
  for (int64_t o = 0; o < a.out; ++o) {
    const float position = (static_cast<float>(o) + (exact ? 0.5f : 0.0f)) * scale;
    int64_t index = static_cast<int64_t>(std::floor(position));
    if (!exact && a.out == a.in) index = o;
    if (!exact && a.out == 2 * a.in) index = o / 2;
    taps.outputs[o].push_back({std::clamp<int64_t>(index, 0, a.in - 1), 1.0});
  }
  return taps;
}

template <typename real>
Taps linear_in(const Axis& a) {
  Taps taps = sized(a);
  for (int64_t o = 0; o < a.out; ++o) {
    if (a.in == a.out) {
      taps.outputs[o].push_back({o, 1.0});
      continue;
    }
    const real position = source<real>(a, o, false);
    const int64_t first = std::min(static_cast<int64_t>(std::floor(position)), a.in - 1);
    const real upper = std::clamp(position - static_cast<real>(first), real{0}, real{1});
    add_tap(taps.outputs[o], first, static_cast<double>(real{1} - upper));
    add_tap(taps.outputs[o], std::min(first + 1, a.in - 1), upper);
  }
  return taps;
}

template <typename real>
Taps cubic_in(const Axis& a) {
  constexpr real c = -0.75;
  const auto near = [](real x) { return ((c + 2) * x - (c + 3)) * x * x + 1; };
  const auto far = [](real x) { return ((c * x - 5 * c) * x + 8 * c) * x - 4 * c; };
  Taps taps = sized(a);
  for (int64_t o = 0; o < a.out; ++o) {
    const real position = source<real>(a, o, true);
    const int64_t first = std::min(static_cast<int64_t>(std::floor(position)), a.in - 1);
    const real t = std::clamp(position - static_cast<real>(first), real{0}, real{1});
    const real weights[4] = {far(t + 1), near(t), near(1 - t), far(2 - t)};
    for (int64_t k = 0; k < 4; ++k) {
      add_tap(taps.outputs[o], std::clamp<int64_t>(first - 1 + k, 0, a.in - 1), weights[k]);
    }
  }
  return taps;
}

// Antialiased filters widen with the ratio when they shrink an image.
double triangle(double x) { return std::max(0.0, 1.0 - std::abs(x)); }
double keys_cubic(double x) {
  constexpr double c = -0.5;
  x = std::abs(x);
  if (x < 1) return ((c + 2) * x - (c + 3)) * x * x + 1;
  return x < 2 ? (((x - 5) * x + 8) * x - 4) * c : 0.0;
}
double lanczos(double x) {
  const auto sinc = [](double y) { return y == 0 ? 1.0 : std::sin(y) / y; };
  constexpr double pi = std::numbers::pi;
  return std::abs(x) < 3 ? sinc(x * pi) * sinc(x * pi / 3) : 0.0;
}

template <typename real>
Taps filtered_in(const Axis& a, double (*filter)(double), int width) {
  Taps taps = sized(a);
  const real scale = ratio<real>(a);
  const real support = static_cast<real>(width * 0.5) * std::max(scale, real{1});
  const real inverse = scale >= 1 ? real{1} / scale : real{1};
  for (int64_t o = 0; o < a.out; ++o) {
    const real center = scale * (static_cast<real>(o) + real{0.5});
    const int64_t from = std::max<int64_t>(static_cast<int64_t>(center - support + real{0.5}), 0);
    const int64_t to = std::min(static_cast<int64_t>(center + support + real{0.5}), a.in);
    double total = 0;
    for (int64_t i = from; i < to; ++i) {
      const real x = (static_cast<real>(i) - center + real{0.5}) * inverse;
      taps.outputs[o].push_back({i, filter(x)});
      total += taps.outputs[o].back().weight;
    }
    if (total == 0) continue;
    for (Tap& tap : taps.outputs[o]) tap.weight /= total;
  }
  return taps;
}

using MakeTaps = Taps (*)(const Axis&, bool is_double);

template <bool exact>
Taps make_nearest(const Axis& a, bool) {
  return nearest<exact>(a);
}
Taps make_linear(const Axis& a, bool is_double) {
  return is_double ? linear_in<double>(a) : linear_in<float>(a);
}
Taps make_cubic(const Axis& a, bool is_double) {
  return is_double ? cubic_in<double>(a) : cubic_in<float>(a);
}
template <double (*filter)(double), int width>
Taps make_filtered(const Axis& a, bool is_double) {
  return is_double ? filtered_in<double>(a, filter, width) : filtered_in<float>(a, filter, width);
}

// The maps of the last n dimensions. Scales stand at `scale_arg` and after.
std::vector<Taps> maps(const Lowering& l, const hlo::Dims& in, const hlo::Dims& out, size_t n,
                       bool align_corners, size_t scale_arg, bool is_double, MakeTaps make) {
  std::vector<Taps> taps;
  for (size_t i = 0; i < n; ++i) {
    const size_t d = in.size() - n + i;
    std::optional<double> scale;
    if (l.has(scale_arg + i)) scale = l.floating(scale_arg + i);
    taps.push_back(make({in[d], out[d], align_corners, scale}, is_double));
  }
  return taps;
}

// aten::upsample_*(self, output_size, [align_corners,] scales...)
template <size_t n, bool has_corners, MakeTaps make>
Values upsample(Lowering& l) {
  const Value x = l.in(0);
  // Nearest moves elements; the others compute, on images of bytes too. For these PyTorch has
  // whole-number arithmetic of its own on the CPU.
  const bool moves = !has_corners;
  const bool bytes = !moves && x.dtype() == DType::U8;
  if (bytes && l.target().prefers_host_kernels()) return on_host(l);
  const DType compute = bytes ? DType::F32 : compute_dtype(x.dtype());
  const std::vector<Taps> taps = maps(l, x.dims(), l.out().dims, n, has_corners && l.flag(2),
                                      has_corners ? 3 : 2, compute == DType::F64, make);
  if (x.dtype() != DType::U8 && !hlo::is_float(compute)) not_implemented("upsample", l.in_dtype(0));
  const Value y = apply_taps(moves ? x : hlo::convert(x, compute), taps);
  if (!bytes) return result(l, y);
  return result(
      l, hlo::clamp(hlo::like(y, 0), hlo::unary("round_nearest_even", y), hlo::like(y, 255)));
}

// aten::upsample_*_backward(grad_output, output_size, input_size, [align_corners,] scales...)
template <size_t n, bool has_corners, MakeTaps make>
Values upsample_backward(Lowering& l) {
  const Value grad = l.in(0);
  const DType compute = compute_dtype(grad.dtype());
  std::vector<Taps> taps = maps(l, l.out().dims, grad.dims(), n, has_corners && l.flag(3),
                                has_corners ? 4 : 3, compute == DType::F64, make);
  for (Taps& t : taps) t = t.transposed();
  return result(l, apply_taps(hlo::convert(grad, compute), taps));
}

template <size_t n, bool has_corners, MakeTaps make>
void add(Registry& r, const std::string& name) {
  r.add("aten::" + name, upsample<n, has_corners, make>);
  r.add("aten::" + name + "_backward", upsample_backward<n, has_corners, make>);
}

}  // namespace

const Rules resize_rules([](Registry& r) {
  add<1, false, make_nearest<false>>(r, "upsample_nearest1d");
  add<2, false, make_nearest<false>>(r, "upsample_nearest2d");
  add<3, false, make_nearest<false>>(r, "upsample_nearest3d");
  add<1, false, make_nearest<true>>(r, "_upsample_nearest_exact1d");
  add<2, false, make_nearest<true>>(r, "_upsample_nearest_exact2d");
  add<3, false, make_nearest<true>>(r, "_upsample_nearest_exact3d");
  add<1, true, make_linear>(r, "upsample_linear1d");
  add<2, true, make_linear>(r, "upsample_bilinear2d");
  add<3, true, make_linear>(r, "upsample_trilinear3d");
  add<2, true, make_cubic>(r, "upsample_bicubic2d");
  add<2, true, make_filtered<triangle, 2>>(r, "_upsample_bilinear2d_aa");
  add<2, true, make_filtered<keys_cubic, 4>>(r, "_upsample_bicubic2d_aa");
  add<2, true, make_filtered<lanczos, 6>>(r, "_upsample_lanczos2d_aa");
});

}  // namespace torch_xla::ops
