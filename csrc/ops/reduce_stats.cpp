// Variances, norms and logsumexp.
#include <algorithm>
#include <cmath>

#include <ATen/ops/empty_like.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "ops/reduce.h"

namespace torch_xla::ops {
namespace {

using hlo::Value;
using hlo::Values;
using Dimensions = std::vector<int64_t>;

// --- variance ----------------------------------------------------------------------------------

struct Moments {
  Value variance;
  Value mean;
};

// Two passes, mean then squared distances: exact where sums of squares would cancel. What a large
// mean has lost to rounding, the sum of the distances tells.
Moments moments(const Lowering& l) {
  Value x = l.in(0);
  x = cast(x, compute_dtype(hlo::is_complex(x.dtype()) ? x.dtype() : l.out().dtype));
  const Dimensions dims = dims_or_all(l, 1, x.rank());
  const double n = static_cast<double>(elements_along(x, dims));
  const double correction = l.has(2) ? l.attr(2).toScalar().toDouble() : 1.0;
  const Value mean = reduce_sum(x, dims) / n;
  if (n == 0) return {hlo::real(mean), mean};  // nan, whatever the correction
  const Value distance = x - spread(mean, x.dims(), dims);
  const auto square = [](const Value& v) {
    return hlo::is_complex(v.dtype()) ? hlo::square(hlo::real(v)) + hlo::square(hlo::imag(v))
                                      : hlo::square(v);
  };
  const Value lost = reduce_sum(distance, dims) / n;
  const Value squares = reduce_sum(square(distance), dims) - square(lost) * n;
  // The compiler may round the two apart where all elements are equal: a fused multiplication.
  const Value positive = hlo::max(squares, hlo::like(squares, 0));
  return {positive / std::max(0.0, n - correction), mean + lost};
}

Values var(Lowering& l) { return {reduced(l, moments(l).variance)}; }
Values std(Lowering& l) { return {reduced(l, hlo::sqrt(moments(l).variance))}; }
Values var_mean(Lowering& l) {
  const Moments m = moments(l);
  return {reduced(l, m.variance, 0), reduced(l, m.mean, 1)};
}
Values std_mean(Lowering& l) {
  const Moments m = moments(l);
  return {reduced(l, hlo::sqrt(m.variance), 0), reduced(l, m.mean, 1)};
}

// --- norms -------------------------------------------------------------------------------------

Values norm(const Lowering& l, double p, const Dimensions& dims) {
  Value x = l.in(0);
  const bool complex_input = hlo::is_complex(x.dtype());
  const hlo::DType wide = compute_dtype(hlo::real_part(l.out().dtype));
  if (complex_input && std::isinf(p)) {
    // The gradient looks for the size that the norm is, which it takes in the dtype of x.
    x = cast(hlo::abs(x), wide);
  } else if (complex_input) {
    x = cast(x, hlo::complex_of(wide));
    // Squares of parts, without the root that abs would take.
    if (p == 2) {
      const Value square = hlo::square(hlo::real(x)) + hlo::square(hlo::imag(x));
      return {reduced(l, hlo::sqrt(reduce_sum(square, dims)))};
    }
    x = hlo::abs(x);
  } else {
    x = cast(x, wide);
    if (p == 2) return {reduced(l, hlo::sqrt(reduce_sum(x * x, dims)))};
    x = hlo::abs(x);
  }
  if (p == 0) return {reduced(l, reduce_sum(cast(hlo::not_equal(x, 0), x.dtype()), dims))};
  if (p == 1) return {reduced(l, reduce_sum(x, dims))};
  if (std::isinf(p)) return {reduced(l, p > 0 ? reduce_max(x, dims) : reduce_min(x, dims))};
  const Value power = hlo::pow(x, hlo::like(x, p));
  const Value total = reduce_sum(power, dims);
  return {reduced(l, hlo::pow(total, hlo::like(total, 1 / p)))};
}

double order(const Lowering& l) { return l.has(1) ? l.attr(1).toScalar().toDouble() : 2.0; }

// (self, p) and (self, p, dim, keepdim)
Values norm_of_all(Lowering& l) { return norm(l, order(l), all_dims(l.in(0).rank())); }
Values norm_along(Lowering& l) { return norm(l, order(l), dims_or_all(l, 2, l.in(0).rank())); }

Values logsumexp(Lowering& l) {
  const Value x = cast(l.in(0), compute_dtype(l.out().dtype));
  const Dimensions dims = dims_or_all(l, 1, x.rank());
  Value top = reduce_max(real_of(x), dims);
  // Where everything is infinite there is nothing to scale by.
  top = hlo::convert(hlo::select(is_inf(top), 0.0, top), x.dtype());
  const Value sum = reduce_sum(hlo::exp(x - spread(top, x.dims(), dims)), dims);
  return {reduced(l, hlo::log(sum) + top)};
}

}  // namespace

// Composite operators recorded whole on purpose: logsumexp, norm.Scalar, norm.ScalarOpt_dtype.
// The correction of a variance and the order of a norm choose the formula: static.
namespace {

// (self, p, dim, ..)
void check_norm(const Arguments& a) {
  const at::Tensor& self = a.tensor(0);
  if (self.numel() != 0 || a[1].isNone()) return;
  const bool has_dims = a.size() > 2 && a[2].isIntList();
  const std::vector<int64_t> dims = has_dims ? a[2].toIntVector() : std::vector<int64_t>();
  (void)at::linalg_vector_norm(self, a[1].toScalar(),
                               dims.empty() ? at::OptionalIntArrayRef() : dims);
}

// (self, dim, correction, ..): PyTorch warns, and the result is nan or infinite.
void degrees_of_freedom(const char* name, const Arguments& a) {
  const at::Tensor self = a.tensor(0);
  const c10::IValue &dim = a[1], &correction = a[2];
  const std::vector<int64_t> dims = dim.isNone() ? std::vector<int64_t>() : dim.toIntVector();
  int64_t n = dims.empty() ? self.numel() : 1;
  for (const int64_t d : dims) n *= self.dim() == 0 ? 1 : self.size(d);
  if (static_cast<double>(n) > (correction.isNone() ? 1.0 : correction.toScalar().toDouble()))
    return;
  TORCH_WARN(name,
             "(): degrees of freedom is <= 0. Correction should be strictly less than the "
             "reduction factor (input numel divided by output numel).");
}
void of_var(const Arguments& a) { degrees_of_freedom("var", a); }
void of_std(const Arguments& a) { degrees_of_freedom("std", a); }
void of_var_mean(const Arguments& a) { degrees_of_freedom("var_mean", a); }
void of_std_mean(const Arguments& a) { degrees_of_freedom("std_mean", a); }

// (data, reduce, lengths, indices, offsets, axis, unsafe, ..)
bool no_partition(const KnownArguments& a) {
  const c10::IValue& given = a[2];
  if (a[6].toBool() || given.isNone() || given.toTensor().numel() == 0) return false;
  const std::optional<at::Tensor> lengths = a.known(given.toTensor());
  if (!lengths || lengths->dim() > a.tensor(0).dim()) return false;
  const int64_t all = a.tensor(0).size(lengths->dim() - 1);
  return lengths->min().item<int64_t>() < 0 || lengths->sum(-1).ne(all).any().item<bool>();
}

// (self, dim, correction, keepdim), of as many results
template <size_t Results>
void statistics_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  if (!x.is_floating_point()) return call.pytorch();
  const std::vector<int64_t> dims =
      call[1].isNone() ? std::vector<int64_t>() : call[1].toIntVector();
  const at::Tensor result = x.sum(dims, call[3].toBool());
  if (Results == 1) return call.results({result});
  call.results({result, at::empty_like(result)});
}

}  // namespace

const Rules reduce_stats_rules([](Registry& r) {
  r.add("aten::var.correction", var).static_numbers = {2};
  r.add("aten::std.correction", std).static_numbers = {2};
  r.add("aten::var_mean.correction", var_mean).static_numbers = {2};
  r.add("aten::std_mean.correction", std_mean).static_numbers = {2};

  r.add("aten::norm.Scalar", norm_of_all).static_numbers = {1};
  r.add("aten::norm.ScalarOpt_dtype", norm_of_all).static_numbers = {1};
  r.add("aten::norm.ScalarOpt_dim", norm_along).static_numbers = {1};
  r.add("aten::norm.ScalarOpt_dim_dtype", norm_along).static_numbers = {1};
  r.add("aten::linalg_vector_norm", norm_along).static_numbers = {1};
  r.add("aten::logsumexp", logsumexp);

  r.all("aten::norm").checks_call = check_norm;
  r.all("aten::var") = {.meta = statistics_meta<1>, .checks_numbers = of_var};
  r.all("aten::std") = {.meta = statistics_meta<1>, .checks_numbers = of_std};
  r.all("aten::var_mean") = {.meta = statistics_meta<2>, .checks_numbers = of_var_mean};
  r.all("aten::std_mean") = {.meta = statistics_meta<2>, .checks_numbers = of_std_mean};
  r.all("aten::segment_reduce").suspects_values = no_partition;
});

}  // namespace torch_xla::ops
