// Averages over windows, fixed or adaptive, and their gradients: each is one map per dimension.
#include <algorithm>

#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

#include "ops/common.h"
#include "ops/meta.h"
#include "ops/pool.h"
#include "ops/resize_taps.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

struct Average {
  PoolWindow window;
  bool count_include_pad = true;
  std::optional<int64_t> divisor;
};

Average average(const Lowering& l, size_t kernel_arg, size_t n) {
  Average a{.window = pool_window(l, kernel_arg, n, false),
            .count_include_pad = l.flag(kernel_arg + 4),
            .divisor = std::nullopt};
  if (l.has(kernel_arg + 5)) a.divisor = l.integer(kernel_arg + 5);
  return a;
}

// PyTorch counts the padding, but never what lies beyond it (as ceil_mode reaches).
Taps window_taps(const Average& a, size_t i, int64_t inputs, int64_t outputs, bool weighted) {
  Taps taps{.inputs = inputs, .outputs = {}};
  taps.outputs.resize(outputs);
  for (int64_t o = 0; o < outputs; ++o) {
    const int64_t begin = o * a.window.stride[i] - a.window.padding[i];
    const int64_t end = std::min(begin + a.window.kernel[i], inputs + a.window.padding[i]);
    const int64_t from = std::max<int64_t>(begin, 0), to = std::min(end, inputs);
    const int64_t count = a.count_include_pad ? end - begin : to - from;
    const double weight = weighted && !a.divisor ? 1.0 / static_cast<double>(count) : 1.0;
    for (int64_t p = from; p < to; ++p) taps.outputs[o].push_back({p, weight});
  }
  return taps;
}

std::vector<Taps> window_taps(const Average& a, const hlo::Dims& in, const hlo::Dims& out,
                              bool weighted = true) {
  const size_t n = a.window.n();
  std::vector<Taps> taps;
  for (size_t i = 0; i < n; ++i) {
    taps.push_back(window_taps(a, i, in[in.size() - n + i], out[out.size() - n + i], weighted));
  }
  return taps;
}

// Integers are summed exactly and divided at the end.
Value integer_average(const Lowering& l, const Average& a) {
  const Value x = l.in(0);
  const hlo::Type out = l.out();
  const size_t n = a.window.n();
  const std::vector<Taps> taps = window_taps(a, x.dims(), out.dims, false);
  const Value sum = apply_taps(hlo::convert(x, DType::S64), taps);
  Value count = hlo::splat_int(l.b, a.divisor.value_or(1), sum.type());
  if (!a.divisor) {
    for (size_t i = 0; i < n; ++i) {
      std::vector<int64_t> counts;
      for (const auto& output : window_taps(a, i, taps[i].inputs, taps[i].size(), true).outputs) {
        counts.push_back(output.empty() ? 1 : static_cast<int64_t>(1.0 / output[0].weight + 0.5));
      }
      count = count * constant_along(l.b, counts, DType::S64, sum.dims(), x.rank() - n + i);
    }
  }
  return sum / count;
}

template <size_t n>
Values avg_pool(Lowering& l) {
  const Average a = average(l, 1, n);
  const DType compute = compute_dtype(l.out().dtype);
  if (!hlo::is_float(compute)) return result(l, integer_average(l, a));
  const Value x = l.in(0);
  Value y = apply_taps(hlo::convert(x, compute), window_taps(a, x.dims(), l.out().dims));
  if (a.divisor) y = y / static_cast<double>(*a.divisor);
  return result(l, computed_once(l, y, x));
}

std::vector<Taps> transposed(std::vector<Taps> taps) {
  for (Taps& t : taps) t = t.transposed();
  return taps;
}

template <size_t n>
Values avg_pool_backward(Lowering& l) {
  const Average a = average(l, 2, n);
  const Value grad = l.in(0);
  Value g = hlo::convert(grad, compute_dtype(l.out().dtype));
  if (a.divisor) g = g / static_cast<double>(*a.divisor);
  return result(l, apply_taps(g, transposed(window_taps(a, l.out().dims, grad.dims()))));
}

// Window o of an adaptive pool covers the inputs from floor(o*in/out) to ceil((o+1)*in/out).
std::vector<Taps> adaptive_taps(const hlo::Dims& in, const hlo::Dims& out, size_t n) {
  std::vector<Taps> taps;
  for (size_t i = 0; i < n; ++i) {
    const int64_t inputs = in[in.size() - n + i], outputs = out[out.size() - n + i];
    Taps t{.inputs = inputs, .outputs = {}};
    t.outputs.resize(outputs);
    for (int64_t o = 0; o < outputs; ++o) {
      const int64_t from = o * inputs / outputs;
      const int64_t to = ((o + 1) * inputs + outputs - 1) / outputs;
      for (int64_t p = from; p < to; ++p) {
        t.outputs[o].push_back({p, 1.0 / static_cast<double>(to - from)});
      }
    }
    taps.push_back(std::move(t));
  }
  return taps;
}

template <size_t n>
Values adaptive_avg_pool(Lowering& l) {
  const Value x = l.in(0);
  const Value y = apply_taps(hlo::convert(x, compute_dtype(x.dtype())),
                             adaptive_taps(x.dims(), l.out().dims, n));
  return result(l, y);
}

template <size_t n>
Values adaptive_avg_pool_backward(Lowering& l) {
  const Value grad = l.in(0);
  const Value g = hlo::convert(grad, compute_dtype(grad.dtype()));
  return result(l, apply_taps(g, transposed(adaptive_taps(l.out().dims, grad.dims(), n))));
}

bool has_elements_per_sample(const at::Tensor& x) {
  return c10::multiply_integers(x.sizes().slice(1)) != 0;
}

// The memory format that the pools of images keep, and those of volumes do not.
template <int64_t n>
at::MemoryFormat kept_format(const at::Tensor& x) {
  return n == 2 ? x.suggest_memory_format() : at::MemoryFormat::Contiguous;
}

// (self, output_size)
template <int64_t n>
void adaptive_avg_pool_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const std::vector<int64_t> windows = call[1].toIntVector();
  const bool usual = (x.dim() == n + 1 || x.dim() == n + 2) && windows.size() == n &&
                     std::ranges::min(windows) >= 0 && has_elements_per_sample(x);
  if (!usual) return call.pytorch();
  std::vector<int64_t> sizes = x.sizes().vec();
  std::ranges::copy(windows, sizes.end() - n);
  call.results({at::empty(sizes, x.options(), kept_format<n>(x))});
}

// (grad_output, self)
template <int64_t n>
void adaptive_avg_pool_backward_meta(MetaCall& call) {
  const at::Tensor grad = call.tensor(0), x = call.tensor(1);
  const bool usual = (grad.dim() == n + 1 || grad.dim() == n + 2) && grad.dim() == x.dim() &&
                     grad.scalar_type() == x.scalar_type() && has_elements_per_sample(grad);
  if (!usual) return call.pytorch();
  call.results({at::empty(x.sizes(), x.options(), kept_format<n>(x))});
}

}  // namespace

const Rules pool_average_rules([](Registry& r) {
  r.add("aten::avg_pool2d", avg_pool<2>);
  r.add("aten::avg_pool3d", avg_pool<3>);
  r.add("aten::avg_pool2d_backward", avg_pool_backward<2>);
  r.add("aten::avg_pool3d_backward", avg_pool_backward<3>);
  r.add("aten::_adaptive_avg_pool2d", adaptive_avg_pool<2>);
  r.add("aten::_adaptive_avg_pool3d", adaptive_avg_pool<3>);
  r.add("aten::_adaptive_avg_pool2d_backward", adaptive_avg_pool_backward<2>);
  r.add("aten::_adaptive_avg_pool3d_backward", adaptive_avg_pool_backward<3>);

  r.all("aten::_adaptive_avg_pool2d").meta = adaptive_avg_pool_meta<2>;
  r.all("aten::_adaptive_avg_pool3d").meta = adaptive_avg_pool_meta<3>;
  r.all("aten::_adaptive_avg_pool2d_backward").meta = adaptive_avg_pool_backward_meta<2>;
  r.all("aten::_adaptive_avg_pool3d_backward").meta = adaptive_avg_pool_backward_meta<3>;
});

}  // namespace torch_xla::ops
