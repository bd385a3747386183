#include "ops/resize_taps.h"

#include <algorithm>
#include <array>
#include <optional>

#include "ops/common.h"

namespace torch_xla::ops {

using hlo::Builder;
using hlo::Dims;
using hlo::DType;
using hlo::Value;

namespace {

// Above this many taps per output a dense product is faster than one pass for each tap.
constexpr int64_t kMostPasses = 24;
// Slices fuse with what reads them, once for each reader: few of them stay cheap.
constexpr int64_t kMostSlices = 4;

Value weights_along(Builder& b, std::span<const double> values, DType dtype, const Dims& dims,
                    int64_t dim) {
  const Value vector = hlo::dense_floats(b, values, {dtype, {static_cast<int64_t>(values.size())}});
  return hlo::broadcast_in_dim(vector, dims, std::array{dim});
}

// Weights that are one number, or one number for each output whatever the tap, leave the sum.
struct Weights {
  bool all_one = true;
  bool by_output = true;
};

Weights classify(const Taps& taps) {
  Weights w;
  for (const auto& output : taps.outputs) {
    for (const Tap& tap : output) {
      w.all_one = w.all_one && tap.weight == 1.0;
      w.by_output = w.by_output && tap.weight == output.front().weight;
    }
  }
  return w;
}

bool is_identity(const Taps& taps) {
  if (taps.size() != taps.inputs) return false;
  for (int64_t o = 0; o < taps.size(); ++o) {
    const auto& output = taps.outputs[o];
    if (output.size() != 1 || output[0].index != o || output[0].weight != 1.0) return false;
  }
  return true;
}

// Every input repeated `times` times.
std::optional<int64_t> repeats(const Taps& taps) {
  if (taps.inputs == 0 || taps.size() == 0 || taps.size() % taps.inputs != 0) return std::nullopt;
  const int64_t times = taps.size() / taps.inputs;
  for (int64_t o = 0; o < taps.size(); ++o) {
    const auto& output = taps.outputs[o];
    if (output.size() != 1 || output[0].index != o / times) return std::nullopt;
  }
  return times;
}

// Consecutive blocks of `size` inputs that together are the whole input.
std::optional<int64_t> blocks(const Taps& taps) {
  if (taps.size() == 0 || taps.inputs % taps.size() != 0) return std::nullopt;
  const int64_t size = taps.inputs / taps.size();
  for (int64_t o = 0; o < taps.size(); ++o) {
    const auto& output = taps.outputs[o];
    if (static_cast<int64_t>(output.size()) != size) return std::nullopt;
    if (output.front().index != o * size) return std::nullopt;
  }
  return size;
}

// Windows that advance by a constant stride: tap t of output o reads index stride*o + t - low,
// and is missing exactly where that lies outside the input.
struct Strided {
  int64_t stride = 1, low = 0, high = 0, window = 0;
};

std::optional<Strided> strided(const Taps& taps) {
  // An output with every tap fixes the phase; a second one the stride.
  const int64_t window = taps.most();
  int64_t first = -1, second = -1;
  for (int64_t o = 0; o < taps.size() && second < 0; ++o) {
    if (static_cast<int64_t>(taps.outputs[o].size()) != window) continue;
    (first < 0 ? first : second) = o;
  }
  if (first < 0) return std::nullopt;
  const int64_t base = taps.outputs[first][0].index;
  Strided s{.stride = 1, .low = 0, .high = 0, .window = window};
  if (second >= 0) {
    const int64_t rise = taps.outputs[second][0].index - base;
    if (rise <= 0 || rise % (second - first) != 0) return std::nullopt;
    s.stride = rise / (second - first);
  } else if (taps.size() > 1) {
    return std::nullopt;
  }
  const int64_t offset = base - s.stride * first;  // index of tap 0 of output 0
  s.low = -offset;
  for (int64_t o = 0; o < taps.size(); ++o) {
    const auto& output = taps.outputs[o];
    size_t given = 0;
    for (int64_t t = 0; t < window; ++t) {
      const int64_t index = s.stride * o + t + offset;
      if (index < 0 || index >= taps.inputs) continue;
      if (given >= output.size() || output[given].index != index) return std::nullopt;
      ++given;
    }
    if (given != output.size()) return std::nullopt;
  }
  s.high = s.stride * (taps.size() - 1) + window - s.low - taps.inputs;
  return s;
}

Value apply_strided(const Value& x, int64_t dim, const Taps& taps, const Strided& s,
                    const Weights& w) {
  Builder& b = x.builder();
  Dims low(x.rank(), 0), high(x.rank(), 0);
  low[dim] = std::max<int64_t>(s.low, 0);
  high[dim] = std::max<int64_t>(s.high, 0);
  const Value padded = hlo::pad(x, hlo::scalar(b, 0, x.dtype()), low, high, Dims(x.rank(), 0));
  const int64_t start = std::max<int64_t>(-s.low, 0);
  Value sum;
  for (int64_t t = 0; t < s.window; ++t) {
    const int64_t from = start + t;
    Value part =
        hlo::slice_dim(padded, dim, from, from + s.stride * (taps.size() - 1) + 1, s.stride);
    if (!w.by_output) {
      std::vector<double> values(taps.size(), 0.0);
      for (int64_t o = 0; o < taps.size(); ++o) {
        const int64_t index = s.stride * o + t - s.low;
        for (const Tap& tap : taps.outputs[o]) {
          if (tap.index == index) values[o] = tap.weight;
        }
      }
      part = part * weights_along(b, values, x.dtype(), part.dims(), dim);
    }
    sum = sum ? sum + part : part;
  }
  return sum;
}

Value apply_gathered(const Value& x, int64_t dim, const Taps& taps, const Weights& w) {
  Builder& b = x.builder();
  Value sum;
  for (int64_t t = 0; t < taps.most(); ++t) {
    std::vector<int64_t> positions(taps.size(), 0), present(taps.size(), 1);
    std::vector<double> values(taps.size(), 0.0);
    bool any_missing = false;
    for (int64_t o = 0; o < taps.size(); ++o) {
      const auto& output = taps.outputs[o];
      if (t < static_cast<int64_t>(output.size())) {
        positions[o] = output[t].index;
        values[o] = output[t].weight;
      } else {
        positions[o] = output.empty() ? 0 : output.back().index;
        present[o] = 0;
        any_missing = true;
      }
    }
    Value part = take_fixed(x, dim, positions);
    if (!w.by_output) part = part * weights_along(b, values, x.dtype(), part.dims(), dim);
    if (any_missing) {
      part = hlo::select(constant_along(b, present, DType::Pred, part.dims(), dim), part, 0);
    }
    sum = sum ? sum + part : part;
  }
  return sum;
}

// The map as a matrix [outputs, inputs], made from one comparison for each tap of the side that has
// fewer of them.
Value matrix(Builder& b, const Taps& taps, DType dtype) {
  const Taps back = taps.transposed();
  const bool by_inputs = back.most() < taps.most();
  const Taps& side = by_inputs ? back : taps;
  const Dims dims = {taps.size(), taps.inputs};
  const int64_t own = by_inputs ? 1 : 0;
  const Value counter = hlo::iota(b, {DType::S64, dims}, 1 - own);
  Value sum = hlo::zero(b, {dtype, dims});
  for (int64_t t = 0; t < side.most(); ++t) {
    std::vector<int64_t> positions(side.size(), -1);
    std::vector<double> values(side.size(), 0.0);
    for (int64_t o = 0; o < side.size(); ++o) {
      if (t >= static_cast<int64_t>(side.outputs[o].size())) continue;
      positions[o] = side.outputs[o][t].index;
      values[o] = side.outputs[o][t].weight;
    }
    const Value here = hlo::equal(counter, constant_along(b, positions, DType::S64, dims, own));
    sum = sum + hlo::select(here, weights_along(b, values, dtype, dims, own), 0);
  }
  return sum;
}

Value apply_dense(const Value& x, int64_t dim, const Taps& taps) {
  const Value product = hlo::dot_general(
      x, matrix(x.builder(), taps, x.dtype()),
      {.lhs_batch = {}, .rhs_batch = {}, .lhs_contract = {dim}, .rhs_contract = {1}}, x.dtype());
  std::vector<int64_t> order;  // the product's last dimension goes to `dim`
  for (int64_t i = 0; i < x.rank(); ++i) {
    order.push_back(i < dim ? i : i == dim ? x.rank() - 1 : i - 1);
  }
  return hlo::transpose(product, order);
}

Value sum_of_windows(const Value& x, int64_t dim, const Strided& s) {
  Dims low(x.rank(), 0), high(x.rank(), 0), limit = x.dims();
  // Inputs that no window reads are cut off: reduce_window has no negative padding.
  low[dim] = std::max<int64_t>(s.low, 0);
  high[dim] = std::max<int64_t>(s.high, 0);
  limit[dim] += std::min<int64_t>(s.high, 0);
  Dims start(x.rank(), 0);
  start[dim] = std::max<int64_t>(-s.low, 0);
  const Value read = hlo::slice(x, start, limit, Dims(x.rank(), 1));
  hlo::Window window(x.rank());
  window.sizes[dim] = s.window;
  window.strides[dim] = s.stride;
  window.pad_low = low;
  window.pad_high = high;
  return hlo::reduce_window(read, hlo::scalar(x.builder(), 0, x.dtype()), window, hlo::add);
}

Value sum_of_blocks(const Value& x, int64_t dim, int64_t size) {
  Dims split = x.dims();
  split[dim] /= size;
  split.insert(split.begin() + dim + 1, size);
  return reduce_sum(hlo::reshape(x, split), std::array{dim + 1});
}

Value repeat(const Value& x, int64_t dim, int64_t times) {
  Dims split = x.dims(), merged = x.dims();
  split.insert(split.begin() + dim + 1, times);
  merged[dim] *= times;
  std::vector<int64_t> mapping;
  for (int64_t i = 0; i < x.rank(); ++i) mapping.push_back(i <= dim ? i : i + 1);
  return hlo::reshape(hlo::broadcast_in_dim(x, split, mapping), merged);
}

}  // namespace

int64_t Taps::most() const {
  size_t most = 0;
  for (const auto& output : outputs) most = std::max(most, output.size());
  return static_cast<int64_t>(most);
}

Taps Taps::transposed() const {
  Taps back;
  back.inputs = size();
  back.outputs.resize(inputs);
  for (int64_t o = 0; o < size(); ++o) {
    for (const Tap& tap : outputs[o]) {
      auto& list = back.outputs[tap.index];
      if (!list.empty() && list.back().index == o) {
        list.back().weight += tap.weight;
      } else {
        list.push_back({o, tap.weight});
      }
    }
  }
  return back;
}

Value constant_along(Builder& b, std::span<const int64_t> values, DType dtype, const Dims& dims,
                     int64_t dim) {
  const Value vector = hlo::dense_ints(b, values, {dtype, {static_cast<int64_t>(values.size())}});
  return hlo::broadcast_in_dim(vector, dims, std::array{dim});
}

Value take_fixed(const Value& x, int64_t dim, std::span<const int64_t> positions) {
  const int64_t n = static_cast<int64_t>(positions.size());
  const Value indices = hlo::dense_ints(x.builder(), positions, {DType::S32, {n, 1}});
  hlo::GatherDims dims;
  for (int64_t i = 0; i < x.rank(); ++i) {
    if (i != dim) dims.offset_dims.push_back(i);
  }
  dims.collapsed_slice_dims = {dim};
  dims.start_index_map = {dim};
  dims.index_vector_dim = 1;
  Dims slice = x.dims(), result = x.dims();
  slice[dim] = 1;
  result[dim] = n;
  const bool sorted = std::is_sorted(positions.begin(), positions.end());
  return hlo::gather(x, indices, dims, slice, x.type().with(result), sorted);
}

Value apply_taps(const Value& x, int64_t dim, const Taps& taps) {
  Builder& b = x.builder();
  Dims dims = x.dims();
  dims[dim] = taps.size();
  const hlo::Type type = x.type().with(dims);
  if (x.type().elements() == 0 || type.elements() == 0 || taps.most() == 0) {
    return hlo::zero(b, type);
  }
  if (is_identity(taps)) return x;
  const Weights w = classify(taps);

  Value y;
  const auto windows = strided(taps);
  if (const auto times = repeats(taps)) {
    y = repeat(x, dim, *times);
  } else if (const auto size = blocks(taps); size && *size > kMostSlices && w.by_output) {
    y = sum_of_blocks(x, dim, *size);
  } else if (windows && w.by_output && taps.most() > kMostSlices) {
    y = sum_of_windows(x, dim, *windows);
  } else if (windows && taps.most() <= kMostPasses) {
    y = apply_strided(x, dim, taps, *windows, w);
  } else if (taps.most() <= kMostPasses) {
    y = apply_gathered(x, dim, taps, w);
  } else {
    return apply_dense(x, dim, taps);
  }
  if (w.all_one || !w.by_output) return y;
  std::vector<double> values;
  for (const auto& output : taps.outputs) {
    values.push_back(output.empty() ? 0.0 : output.front().weight);
  }
  return y * weights_along(b, values, x.dtype(), dims, dim);
}

Value apply_taps(Value x, std::span<const Taps> taps) {
  const int64_t first = x.rank() - static_cast<int64_t>(taps.size());
  for (size_t i = 0; i < taps.size(); ++i) x = apply_taps(x, first + i, taps[i]);
  return x;
}

}  // namespace torch_xla::ops
