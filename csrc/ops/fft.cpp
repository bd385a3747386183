// Discrete Fourier transforms: _fft_c2c, _fft_r2c and _fft_c2r. PyTorch names dimensions in any
// order and a scale; StableHLO transforms up to three trailing dimensions and always divides when
// it goes back.
#include <algorithm>
#include <cmath>
#include <numeric>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/WrapDimUtils.h>

#include "cpu/in_memory.h"
#include "ops/common.h"
#include "ops/lowering.h"
#include "ops/meta.h"

namespace torch_xla::ops {
namespace {

using hlo::Value;
using hlo::Values;

enum Argument : size_t { Self, Dim, Normalization, Last };
// PyTorch's fft_norm_mode.
enum Scale : int64_t { None, ByRoot, ByElements };

std::vector<int64_t> transformed_dims(const Lowering& l) {
  std::vector<int64_t> dims;
  for (const int64_t d : l.ints(Dim)) dims.push_back(wrap_dim(d, l.in(Self).rank()));
  return dims;
}

int64_t product(const hlo::Dims& sizes, const std::vector<int64_t>& dims) {
  int64_t n = 1;
  for (const int64_t d : dims) n *= sizes[d];
  return n;
}

// The factor for the values of a transform of `n` elements.
double factor(const Lowering& l, int64_t n) {
  switch (l.integer(Normalization)) {
    case ByRoot:
      return 1 / std::sqrt(static_cast<double>(n));
    case ByElements:
      return 1 / static_cast<double>(n);
    default:
      return 1;
  }
}

Value normalized(const Value& x, double by) {
  return by == 1 ? x : hlo::mul(x, hlo::splat(x.builder(), by, x.type()));
}

// XLA's CPU compiler lets a transform have any order of its dimensions in memory and then refuses
// to run it. What devices gather from one another has such orders, along the split dimension first,
// but a call has one order.
Value in_order(const Lowering& l, const Value& x) {
  return l.target().host_kernels && l.target().partitioned ? cpu::in_memory({x})[0] : x;
}

// The transform of some dimensions of x, moved to the end and back.
Value transform(const Lowering& l, const Value& x, std::string_view kind,
                const std::vector<int64_t>& dims, std::span<const int64_t> lengths) {
  std::vector<int64_t> order;
  for (int64_t d = 0; d < x.rank(); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) order.push_back(d);
  }
  order.insert(order.end(), dims.begin(), dims.end());
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
  const Value made = hlo::fft(in_order(l, hlo::transpose(x, order)), kind, lengths);
  return hlo::transpose(in_order(l, made), back);
}

Value complex_transform(const Lowering& l, Value x, std::string_view kind,
                        const std::vector<int64_t>& dims) {
  constexpr size_t kAtOnce = 3;
  for (size_t first = 0; first < dims.size(); first += kAtOnce) {
    const auto begin = dims.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<int64_t> some(
        begin, begin + static_cast<std::ptrdiff_t>(std::min(kAtOnce, dims.size() - first)));
    std::vector<int64_t> lengths;
    for (const int64_t d : some) lengths.push_back(x.dims()[d]);
    x = transform(l, x, kind, some, lengths);
  }
  return x;
}

bool is_empty(const hlo::Dims& dims) {
  return std::find(dims.begin(), dims.end(), 0) != dims.end();
}

// aten::_fft_c2c(self, dim, normalization, forward)
Values c2c(Lowering& l) {
  const Value x = l.in(Self);
  const std::vector<int64_t> dims = transformed_dims(l);
  if (is_empty(x.dims())) return {x};
  const bool forward = l.flag(Last);
  const int64_t n = product(x.dims(), dims);
  const double undo = forward ? 1 : static_cast<double>(n);
  return {normalized(complex_transform(l, x, forward ? "FFT" : "IFFT", dims), undo * factor(l, n))};
}

// aten::_fft_r2c(self, dim, normalization, onesided): the last of `dim` is halved.
Values r2c(Lowering& l) {
  const Value x = l.in(Self);
  std::vector<int64_t> dims = transformed_dims(l);
  if (is_empty(l.out().dims)) return {hlo::zero(l.b, l.out())};
  const double by = factor(l, product(x.dims(), dims));
  if (!l.flag(Last)) {
    return {normalized(complex_transform(l, hlo::convert(x, l.out().dtype), "FFT", dims), by)};
  }
  const int64_t halved = dims.back();
  const int64_t length = x.dims()[halved];
  const Value half = transform(l, x, "RFFT", {halved}, {&length, 1});
  dims.pop_back();
  return {normalized(complex_transform(l, half, "FFT", dims), by)};
}

// aten::_fft_c2r(self, dim, normalization, last_dim_size): the last of `dim` was halved.
Values c2r(Lowering& l) {
  std::vector<int64_t> dims = transformed_dims(l);
  if (is_empty(l.out().dims)) return {hlo::zero(l.b, l.out())};
  const int64_t n = product(l.out().dims, dims);
  const int64_t halved = dims.back();
  const int64_t length = l.integer(Last);
  dims.pop_back();
  const Value half = complex_transform(l, l.in(Self), "IFFT", dims);
  return {normalized(transform(l, half, "IRFFT", {halved}, {&length, 1}),
                     static_cast<double>(n) * factor(l, n))};
}

// --- Shapes: PyTorch's Meta kernels have CUDA's strides ------------------------------------

std::vector<int64_t> dims_of(const c10::IValue& dims, const at::Tensor& x) {
  std::vector<int64_t> wrapped = dims.toIntVector();
  for (int64_t& d : wrapped) d = at::maybe_wrap_dim(d, x.dim());
  return wrapped;
}

using Order = std::vector<int64_t>::iterator;
// Such dimensions with long strides come first.
void sort_by_stride(Order begin, Order end, const at::Tensor& x) {
  std::sort(begin, end, [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
}

// MKL takes the transformed dimensions of x as the innermost, and so leaves them in the result.
at::Tensor transformed(const at::Tensor& x, at::ScalarType dtype, const std::vector<int64_t>& sizes,
                       const std::vector<int64_t>& dims) {
  if (!at::hasMKL()) return meta_tensor(*lazy::intern_contiguous(dtype, sizes), false);
  std::vector<int64_t> order(x.dim());
  std::iota(order.begin(), order.end(), 0);
  const Order batch_end = std::partition(order.begin(), order.end(), [&](int64_t d) {
    return std::ranges::find(dims, d) == dims.end();
  });
  sort_by_stride(order.begin(), batch_end, x);
  std::ranges::copy(dims, batch_end);
  std::vector<int64_t> strides(x.dim());
  int64_t next = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[*d] = next;
    next *= std::max<int64_t>(sizes[*d], 1);
  }
  return at::detail::empty_strided_meta(sizes, strides, dtype);
}

at::Tensor complex_transformed(const at::Tensor& x, std::vector<int64_t> dims) {
  sort_by_stride(dims.begin(), dims.end(), x);
  return transformed(x, x.scalar_type(), x.sizes().vec(), dims);
}

// (self, dim, normalization, forward)
void c2c_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  TORCH_CHECK(x.is_complex(), "_fft_c2c: expected a complex tensor, got ", x.scalar_type());
  const std::vector<int64_t> dims = dims_of(call[1], x);
  call.results({dims.empty() ? x.clone() : complex_transformed(x, dims)});
}

// (self, dim, normalization, onesided): one halves the last of dim.
void r2c_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  TORCH_CHECK(x.is_floating_point(), "_fft_r2c: expected a real floating-point tensor, got ",
              x.scalar_type());
  std::vector<int64_t> dims = dims_of(call[1], x), sizes = x.sizes().vec();
  if (call[3].toBool()) sizes[dims.back()] = sizes[dims.back()] / 2 + 1;
  sort_by_stride(dims.begin(), dims.end() - 1, x);
  call.results({transformed(x, c10::toComplexType(x.scalar_type()), sizes, dims)});
}

// (self, dim, normalization, last_dim_size): all but the last of dim are transformed before it.
void c2r_meta(MetaCall& call) {
  at::Tensor x = call.tensor(0);
  TORCH_CHECK(x.is_complex(), "_fft_c2r: expected a complex tensor, got ", x.scalar_type());
  std::vector<int64_t> dims = dims_of(call[1], x), sizes = x.sizes().vec();
  const int64_t last = dims.back();
  sizes[last] = call[3].toInt();
  dims.pop_back();
  if (!dims.empty()) x = complex_transformed(x, dims);
  call.results({transformed(x, c10::toRealValueType(x.scalar_type()), sizes, {last})});
}

}  // namespace

const Rules fft_rules([](Registry& r) {
  r.add("aten::_fft_c2c", c2c);
  r.add("aten::_fft_r2c", r2c);
  r.add("aten::_fft_c2r", c2r);

  r.all("aten::_fft_c2c").meta = c2c_meta;
  r.all("aten::_fft_r2c").meta = r2c_meta;
  r.all("aten::_fft_c2r").meta = c2r_meta;
  for (const char* name : {"aten::fft_fft", "aten::fft_ifft", "aten::fft_fft2", "aten::fft_ifft2",
                           "aten::fft_fftn", "aten::fft_ifftn", "aten::fft_rfft", "aten::fft_irfft",
                           "aten::fft_rfft2", "aten::fft_irfft2", "aten::fft_rfftn",
                           "aten::fft_irfftn", "aten::fft_hfft", "aten::fft_ihfft", "aten::stft"}) {
    r.all(name).autocast = Autocast::Float32;
  }
});

}  // namespace torch_xla::ops
