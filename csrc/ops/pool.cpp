#include "ops/pool.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <optional>

#include <ATen/Context.h>
#include <ATen/native/Pool.h>
#include <ATen/ops/empty.h>

#include "ops/common.h"
#include "ops/meta.h"
#include "ops/resize_taps.h"

namespace torch_xla::ops {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

std::vector<int64_t> expanded(const std::vector<int64_t>& values, size_t n) {
  return values.size() == 1 ? std::vector<int64_t>(n, values[0]) : values;
}

int64_t PoolWindow::elements() const {
  return std::accumulate(kernel.begin(), kernel.end(), int64_t{1}, std::multiplies<>());
}

PoolWindow pool_window(const Lowering& l, size_t kernel_arg, size_t n, bool dilated) {
  PoolWindow w;
  w.kernel = expanded(l.ints(kernel_arg), n);
  w.stride = expanded(l.ints(kernel_arg + 1), n);
  if (w.stride.empty()) w.stride = w.kernel;
  w.padding = expanded(l.ints(kernel_arg + 2), n);
  w.dilation = dilated ? expanded(l.ints(kernel_arg + 3), n) : std::vector<int64_t>(n, 1);
  return w;
}

Value computed_once(const Lowering& l, const Value& v, const Value& x) {
  if (!l.target().is_cpu() || !hlo::is_float(v.dtype()) || !hlo::is_float(x.dtype())) return v;
  if (v.type().elements() == 0 || x.type().elements() == 0) return v;
  if (v.builder().mesh() != nullptr) return v;  // each device would need the whole of `x`
  // The compiler holds divisions for expensive, and expensive values are not repeated. The divisor
  // is 1, made so that the compiler cannot know it: s*s - s is 0 for a sign bit s.
  const Value first =
      hlo::reshape(hlo::slice(x, Dims(x.rank(), 0), Dims(x.rank(), 1), Dims(x.rank(), 1)), {});
  const Value s = hlo::convert(sign_bit(first), DType::S32);
  const Value one = hlo::convert(s * s - s + 1, v.dtype());
  return v / hlo::broadcast_to(one, v.dims());
}

namespace {

// Windows up to this many elements become slices and selects, which vectorize.
constexpr int64_t kMostSlices = 16;

// The maxima of windows with the flat spatial position of each, as PyTorch picks it: the first of
// equals, the last nan.
struct Maxima {
  Value values, positions;
};

DType position_dtype(const hlo::Type& input, size_t n) {
  const int64_t spatial =
      std::accumulate(input.dims.end() - n, input.dims.end(), int64_t{1}, std::multiplies<>());
  return spatial < std::numeric_limits<int32_t>::max() ? DType::S32 : DType::S64;
}

// Strides, in elements, of the spatial dimensions.
std::vector<int64_t> spatial_strides(const Dims& dims, size_t n) {
  std::vector<int64_t> strides(n, 1);
  for (size_t i = n - 1; i-- > 0;) strides[i] = strides[i + 1] * dims[dims.size() - n + i + 1];
  return strides;
}

// The elements that the windows read past the end of the input.
int64_t overhang(const Value& x, const Dims& out, const PoolWindow& w, size_t i) {
  const int64_t d = x.rank() - w.n() + i;
  return (out[d] - 1) * w.stride[i] + w.extent(i) - x.dim(d) - w.padding[i];
}

Maxima maxima_by_slices(const Value& x, const Dims& out, const PoolWindow& w) {
  hlo::Builder& b = x.builder();
  const size_t n = w.n();
  const int64_t lead = x.rank() - n;
  const DType index = position_dtype(x.type(), n);
  const std::vector<int64_t> strides = spatial_strides(x.dims(), n);

  Dims low(x.rank(), 0), high(x.rank(), 0);
  bool padded_below = false;
  for (size_t i = 0; i < n; ++i) {
    low[lead + i] = w.padding[i];
    high[lead + i] = std::max<int64_t>(overhang(x, out, w, i), 0);
    padded_below = padded_below || w.padding[i] != 0;
  }
  const Value padded = hlo::pad(x, hlo::lowest(b, {x.dtype(), {}}), low, high, Dims(x.rank(), 0));

  const hlo::Type index_type{index, out};
  Value best, offset;
  std::vector<int64_t> tap(n, 0);
  for (int64_t count = 0; count < w.elements(); ++count) {
    Dims start(x.rank(), 0), limit = padded.dims(), step(x.rank(), 1);
    int64_t flat = 0;
    for (size_t i = 0; i < n; ++i) {
      start[lead + i] = tap[i] * w.dilation[i];
      limit[lead + i] = start[lead + i] + (out[lead + i] - 1) * w.stride[i] + 1;
      step[lead + i] = w.stride[i];
      flat += tap[i] * w.dilation[i] * strides[i];
    }
    const Value v = hlo::slice(padded, start, limit, step);
    const Value here = hlo::splat_int(b, flat, index_type);
    if (!best) {
      best = v;
      offset = here;
    } else {
      const Value better = hlo::greater(v, best) | hlo::is_nan(v);
      best = hlo::select(better, v, best);
      offset = hlo::select(better, here, offset);
    }
    for (size_t i = n; i-- > 0;) {
      if (++tap[i] < w.kernel[i]) break;
      tap[i] = 0;
    }
  }

  // Position of tap 0 of each window; in `inside` moved to the first tap that is in the input,
  // for a window whose elements are all the lowest number.
  Value base = hlo::zero(b, index_type), inside = base;
  for (size_t i = 0; i < n; ++i) {
    std::vector<int64_t> from(out[lead + i]), first(out[lead + i]);
    for (int64_t o = 0; o < out[lead + i]; ++o) {
      const int64_t p = o * w.stride[i] - w.padding[i];
      const int64_t skipped = p < 0 ? (-p + w.dilation[i] - 1) / w.dilation[i] : 0;
      from[o] = p * strides[i];
      first[o] = (p + skipped * w.dilation[i]) * strides[i];
    }
    base = base + constant_along(b, from, index, out, lead + i);
    inside = inside + constant_along(b, first, index, out, lead + i);
  }
  Value positions = base + offset;
  if (padded_below) positions = hlo::select(hlo::equal(offset, 0), inside, positions);
  return {best, positions};
}

Maxima maxima_by_window(const Value& x, const Dims& out, const PoolWindow& w) {
  hlo::Builder& b = x.builder();
  const size_t n = w.n();
  const int64_t lead = x.rank() - n;
  const DType index = position_dtype(x.type(), n);
  Dims spatial(x.dims().begin() + lead, x.dims().end());
  const int64_t count = hlo::Type{index, spatial}.elements();
  std::vector<int64_t> mapping(n);
  std::iota(mapping.begin(), mapping.end(), lead);
  const Value position = hlo::broadcast_in_dim(
      hlo::reshape(hlo::iota(b, {index, {count}}, 0), spatial), x.dims(), mapping);

  hlo::Window window(x.rank());
  for (size_t i = 0; i < n; ++i) {
    window.sizes[lead + i] = w.kernel[i];
    window.strides[lead + i] = w.stride[i];
    window.window_dilations[lead + i] = w.dilation[i];
    window.pad_low[lead + i] = w.padding[i];
    window.pad_high[lead + i] = std::max<int64_t>(overhang(x, out, w, i), 0);
  }
  const std::array operands = {x, position};
  const std::array inits = {hlo::lowest(b, {x.dtype(), {}}), hlo::highest(b, {index, {}})};
  const Values r = hlo::reduce_window(
      operands, inits, window, [](std::span<const Value> a, std::span<const Value> e) {
        const Value tie = hlo::equal(e[0], a[0]) & hlo::less(e[1], a[1]);
        const Value nan = hlo::is_nan(e[0]) & ((~hlo::is_nan(a[0])) | hlo::greater(e[1], a[1]));
        const Value better = hlo::greater(e[0], a[0]) | tie | nan;
        return Values{hlo::select(better, e[0], a[0]), hlo::select(better, e[1], a[1])};
      });
  return {r[0], r[1]};
}

template <size_t n>
Values max_pool(Lowering& l) {
  const Value x = l.in(0);
  const Dims out = l.out(0).dims;
  if (l.out(0).elements() == 0) {
    return {hlo::zero(l.b, l.out(0)), hlo::zero(l.b, l.out(1))};
  }
  const PoolWindow w = pool_window(l, 1, n, true);
  // TPUs have no reduce_window over several operands.
  const Maxima m = w.elements() <= kMostSlices || l.target().is_tpu() ? maxima_by_slices(x, out, w)
                                                                      : maxima_by_window(x, out, w);
  return {computed_once(l, m.values, x), hlo::convert(m.positions, DType::S64)};
}

// select_and_scatter finds the maxima again; TPUs have hardware for it and slow scatters.
Value select_and_scatter_max(const Value& grad, const Value& x, const PoolWindow& w) {
  hlo::Builder& b = x.builder();
  const int64_t lead = x.rank() - w.n();
  hlo::Window window(x.rank());
  for (size_t i = 0; i < w.n(); ++i) {
    window.sizes[lead + i] = w.kernel[i];
    window.strides[lead + i] = w.stride[i];
    window.pad_low[lead + i] = w.padding[i];
    window.pad_high[lead + i] = std::max<int64_t>(overhang(x, grad.dims(), w, i), 0);
  }
  return hlo::select_and_scatter(
      x, grad, hlo::scalar(b, 0, x.dtype()), window,
      [](const Value& x, const Value& y) { return hlo::greater_equal(x, y); }, hlo::add);
}

template <size_t n>
Values max_pool_backward(Lowering& l) {
  const PoolWindow w = pool_window(l, 2, n, true);
  bool overlapping = false, dilated = false;
  for (size_t i = 0; i < n; ++i) {
    overlapping = overlapping || w.extent(i) > w.stride[i];
    dilated = dilated || w.dilation[i] != 1;
  }
  if (l.target().is_tpu() && !dilated) {
    return result(l, select_and_scatter_max(l.in(0), l.in(1), w));
  }
  return result(l, scatter_to_positions(l.in(0), l.in(7), l.out(), n, !overlapping));
}

// The product of all dimensions but the last `n`.
int64_t planes_of(const hlo::Type& type, size_t n) {
  return hlo::Type{type.dtype, {type.dims.begin(), type.dims.end() - n}}.elements();
}

// Puts values at their flat positions within planes of zeros of type `out`.
Value scatter_in_planes(const Value& values, const Value& positions, const hlo::Type& out,
                        int64_t planes, Value (*combine)(const Value&, const Value&),
                        bool unique = false) {
  const int64_t inputs = values.type().elements() / planes;
  const hlo::ScatterDims dims{.update_window_dims = {},
                              .inserted_window_dims = {1},
                              .input_batching_dims = {0},
                              .scatter_indices_batching_dims = {0},
                              .scatter_dims_to_operand_dims = {1},
                              .index_vector_dim = 2};
  const Value zeros = hlo::zero(values.builder(), {out.dtype, {planes, out.elements() / planes}});
  const Value made =
      hlo::scatter(zeros, hlo::reshape(positions, {planes, inputs, 1}),
                   hlo::reshape(values, {planes, inputs}), dims, combine, false, unique);
  return hlo::reshape(made, out.dims);
}

template <size_t n>
Values max_unpool(Lowering& l) {
  const hlo::Type out = l.out();
  const Value x = l.in(0);
  if (x.type().elements() == 0) return {hlo::zero(l.b, out)};
  return {scatter_in_planes(x, l.in(1), out, planes_of(out, n),
                            [](const Value&, const Value& update) { return update; })};
}

}  // namespace

Value scatter_to_positions(const Value& grad, const Value& indices, const hlo::Type& input,
                           size_t n, bool unique) {
  hlo::Builder& b = grad.builder();
  const DType compute = compute_dtype(grad.dtype());
  if (grad.type().elements() == 0) return hlo::zero(b, input.with(compute));
  const int64_t planes = planes_of(input, n);
  if (b.mesh() != nullptr) {  // planes of their own, of which each device has some
    return scatter_in_planes(hlo::convert(grad, compute), indices, input.with(compute), planes,
                             hlo::add, unique);
  }
  const int64_t positions = input.elements() / planes;
  const int64_t windows = grad.type().elements() / planes;
  // One flat index: this is what XLA's CPU compiler scatters fastest.
  const DType index =
      input.elements() < std::numeric_limits<int32_t>::max() ? DType::S32 : DType::S64;
  const hlo::Type index_type{index, {planes, windows}};
  const Value plane = hlo::iota(b, index_type, 0) * static_cast<double>(positions);
  const Value flat = hlo::convert(hlo::reshape(indices, {planes, windows}), index) + plane;
  const hlo::ScatterDims dims{.update_window_dims = {},
                              .inserted_window_dims = {0},
                              .input_batching_dims = {},
                              .scatter_indices_batching_dims = {},
                              .scatter_dims_to_operand_dims = {0},
                              .index_vector_dim = 1};
  const Value sums = hlo::scatter(
      hlo::zero(b, {compute, {input.elements()}}), hlo::reshape(flat, {planes * windows, 1}),
      hlo::reshape(hlo::convert(grad, compute), {planes * windows}), dims, hlo::add, false, unique);
  return hlo::reshape(sums, input.dims);
}

namespace {

// Counts the windows that max_pool3d(self, kernel_size, stride, padding, dilation, ceil_mode) puts
// along each dimension; nothing where PyTorch refuses them.
std::optional<std::array<int64_t, 3>> windows_of_volume(MetaCall& call) {
  std::vector<int64_t> kernel, stride, padding, dilation;
  size_t next = 1;
  for (auto* list : {&kernel, &stride, &padding, &dilation}) {
    *list = expanded(call[next++].toIntVector(), 3);
    if (list == &stride && stride.empty()) stride = kernel;
    if (list->size() != 3) return std::nullopt;
  }
  std::array<int64_t, 3> counts;
  for (size_t k = 0; k < 3; ++k) {
    const int64_t extent = call.tensor(0).size(static_cast<int64_t>(k) - 3);
    const bool usual = extent > 0 && kernel[k] > 0 && stride[k] > 0 && dilation[k] > 0 &&
                       padding[k] >= 0 && padding[k] <= kernel[k] / 2;
    if (!usual) return std::nullopt;
    counts[k] = at::native::pooling_output_shape<int64_t>(extent, kernel[k], padding[k], stride[k],
                                                          dilation[k], call[next].toBool());
    if (counts[k] < 1) return std::nullopt;
  }
  return counts;
}

void max_pool3d_meta(MetaCall& call) {
  constexpr auto kLast = at::MemoryFormat::ChannelsLast3d;
  const at::Tensor self = call.tensor(0);
  const bool one_sample = self.dim() == 4;
  if ((!one_sample && self.dim() != 5) || self.size(-4) == 0) return call.pytorch();
  const auto counts = windows_of_volume(call);
  if (!counts) return call.pytorch();
  // The CPU kernel keeps the memory format of one sample, too: such a sample is a batch of one.
  at::Tensor batch = one_sample ? self.unsqueeze(0) : self;
  const bool keeps = !one_sample || batch.is_contiguous(kLast);
  if (one_sample && keeps) batch = batch.contiguous().contiguous(kLast);
  const auto format = keeps ? batch.suggest_memory_format() : at::MemoryFormat::Contiguous;
  std::vector<int64_t> sizes = batch.sizes().vec();
  std::ranges::copy(*counts, sizes.begin() + 2);
  const auto shaped = [&](at::ScalarType dtype) {
    const at::Tensor y = at::empty(sizes, self.options().dtype(dtype), format);
    return one_sample ? y.squeeze(0) : y;
  };
  call.results({shaped(self.scalar_type()), shaped(at::kLong)});
}

// (grad_output, self, kernel_size, stride, padding, dilation, ceil_mode, indices)
void max_pool3d_backward_meta(MetaCall& call) {
  const at::Tensor grad = call.tensor(0), x = call.tensor(1), indices = call.tensor(7);
  const bool usual = (x.dim() == 4 || x.dim() == 5) && grad.dim() == x.dim() &&
                     grad.scalar_type() == x.scalar_type() && grad.sizes() == indices.sizes() &&
                     grad.sizes().slice(0, x.dim() - 3) == x.sizes().slice(0, x.dim() - 3) &&
                     x.numel() != 0 && grad.numel() != 0;
  if (!usual) return call.pytorch();
  const auto format = x.dim() == 5 ? x.suggest_memory_format() : at::MemoryFormat::Contiguous;
  call.results({at::empty(x.sizes(), x.options(), format)});
}

// (self, indices, output_size, ..)
template <int64_t Spatial>
void max_unpool_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0), indices = call.tensor(1);
  const std::vector<int64_t> spatial = call[2].toIntVector();
  const auto positive = [](int64_t n) { return n > 0; };
  bool usual = (x.dim() == Spatial + 1 || x.dim() == Spatial + 2) && x.numel() != 0 &&
               indices.scalar_type() == at::kLong && indices.sizes() == x.sizes() &&
               spatial.size() == Spatial && std::ranges::all_of(spatial, positive) &&
               !at::globalContext().deterministicAlgorithms();
  if (Spatial == 3) {
    const std::vector<int64_t> stride = call[3].toIntVector();
    usual = usual && stride.size() == 3 && std::ranges::all_of(stride, positive) &&
            call[4].toIntVector().size() == 3;
  }
  if (!usual) return call.pytorch();
  std::vector<int64_t> sizes = x.sizes().vec();
  std::ranges::copy(spatial, sizes.end() - Spatial);
  call.results({meta_of_sizes(x, sizes)});
}

// (self, kernel_size, output_size, random_samples)
template <int64_t Spatial>
void fractional_max_pool(const Arguments& a) {
  const at::Tensor self = a.tensor(0), samples = a.tensor(3);
  TORCH_CHECK(self.scalar_type() == samples.scalar_type(),
              "Expect _random_samples to have the same dtype as input");
  const bool batched = self.dim() == Spatial + 2;
  TORCH_CHECK(
      samples.dim() == 3 && samples.size(0) >= (batched ? self.size(0) : 1) &&
          samples.size(1) == self.size(batched ? 1 : 0) && samples.size(2) == Spatial,
      "Expect _random_samples of a row for each sample, of a column for each channel and of ",
      Spatial, " numbers there, got ", samples.sizes(), ".");
}

}  // namespace

const Rules pool_rules([](Registry& r) {
  r.add("aten::max_pool2d_with_indices", max_pool<2>);
  r.add("aten::max_pool3d_with_indices", max_pool<3>);
  r.add("aten::max_pool2d_with_indices_backward", max_pool_backward<2>);
  r.add("aten::max_pool3d_with_indices_backward", max_pool_backward<3>);
  r.add("aten::max_unpool2d", max_unpool<2>);
  r.add("aten::max_unpool3d", max_unpool<3>);

  r.all("aten::max_pool3d_with_indices").meta = max_pool3d_meta;
  r.all("aten::max_pool3d_with_indices_backward").meta = max_pool3d_backward_meta;
  r.all("aten::max_unpool2d") = {.meta = max_unpool_meta<2>, .layout = layout_of_input};
  r.all("aten::max_unpool3d").meta = max_unpool_meta<3>;
  r.all("aten::fractional_max_pool2d").checks_call = fractional_max_pool<2>;
  r.all("aten::fractional_max_pool3d").checks_call = fractional_max_pool<3>;
  r.all("aten::fractional_max_pool3d_backward").meta = like_second;
});

}  // namespace torch_xla::ops
