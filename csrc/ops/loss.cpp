// Losses of one element against one target element, and their gradients.
#include "ops/loss.h"

#include <algorithm>

#include <ATen/core/Reduction.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/result_type.h>

#include "ops/elementwise.h"
#include "ops/meta.h"

namespace torch_xla::ops {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

Value reduced(const Value& losses, Reduction r) {
  if (r == Reduction::None) return losses;
  const Value sum = reduce_sum(losses, all_dims(losses.rank()));
  return r == Reduction::Sum ? sum : sum / static_cast<double>(losses.type().elements());
}

Value spread_gradient(const Value& grad, const Dims& dims, DType dtype, Reduction r,
                      int64_t elements) {
  Value g = hlo::convert(grad, dtype);
  if (r == Reduction::Mean) g = g / static_cast<double>(elements);
  return hlo::broadcast_to(g, dims);
}

namespace {

Dims broadcast_dims(const Dims& a, const Dims& b) {
  Dims out(std::max(a.size(), b.size()), 1);
  const auto merge = [&](const Dims& x) {
    for (size_t i = 0; i < x.size(); ++i) {
      int64_t& d = out[out.size() - x.size() + i];
      if (x[i] != 1) d = x[i];
    }
  };
  merge(a);
  merge(b);
  return out;
}

DType loss_dtype(const Lowering& l, size_t self, size_t target) {
  return compute_dtype(to_hlo(l.promoted({self, target})));
}

// A loss of (x, target) alone: the rule is its formula.
using Formula = Value (*)(const Lowering&, const Value& x, const Value& target);

// aten::*_loss(self, target, reduction, ...)
template <Formula formula>
Values loss(Lowering& l) {
  const DType compute = loss_dtype(l, 0, 1);
  const Dims dims = broadcast_dims(l.in(0).dims(), l.in(1).dims());
  const Value losses = formula(l, l.in(0, compute, dims), l.in(1, compute, dims));
  return result(l, reduced(losses, reduction(l, 2)));
}

// aten::*_loss_backward(grad_output, self, target, reduction, ...): the formula is the derivative.
template <Formula formula>
Values loss_backward(Lowering& l) {
  const DType compute = loss_dtype(l, 1, 2);
  const Dims dims = broadcast_dims(l.in(1).dims(), l.in(2).dims());
  const Value slope = formula(l, l.in(1, compute, dims), l.in(2, compute, dims));
  // As PyTorch has it: by the elements of self, also where target broadcasts it.
  const int64_t elements = l.in(1).type().elements();
  return result(l, slope * spread_gradient(l.in(0), dims, compute, reduction(l, 3), elements));
}

Value squared_error(const Lowering&, const Value& x, const Value& t) { return hlo::square(x - t); }
Value squared_error_slope(const Lowering&, const Value& x, const Value& t) { return 2 * (x - t); }

// Quadratic up to beta, linear beyond.
Value smooth_l1(const Lowering& l, const Value& x, const Value& t) {
  const double beta = l.floating(3);
  const Value z = hlo::abs(x - t);
  if (beta == 0) return z;
  return hlo::select(hlo::less(z, beta), 0.5 * z * z / beta, z - 0.5 * beta);
}
Value smooth_l1_slope(const Lowering& l, const Value& x, const Value& t) {
  const double beta = l.floating(4);
  const Value d = x - t;
  const Value inner = beta == 0 ? hlo::like(d, 0) : d / beta;
  return hlo::select(hlo::less_equal(d, -beta), -1,
                     hlo::select(hlo::greater_equal(d, beta), 1, inner));
}

Value huber(const Lowering& l, const Value& x, const Value& t) {
  const double delta = l.floating(3);
  const Value z = hlo::abs(x - t);
  return hlo::select(hlo::less_equal(z, delta), 0.5 * z * z, delta * (z - 0.5 * delta));
}
Value huber_slope(const Lowering& l, const Value& x, const Value& t) {
  const double delta = l.floating(4);
  const Value d = x - t;
  return hlo::select(hlo::less_equal(d, -delta), -delta,
                     hlo::select(hlo::greater_equal(d, delta), delta, d));
}

Value soft_margin(const Lowering&, const Value& x, const Value& t) {
  return hlo::log1p(hlo::exp(-t * x));
}
Value soft_margin_slope(const Lowering&, const Value& x, const Value& t) {
  const Value z = hlo::exp(-t * x);
  return -t * z / (z + 1);
}

// (self, target, weight, reduction). Logarithms stop at -100, as PyTorch's do.
Values binary_cross_entropy(Lowering& l) {
  const DType compute = compute_dtype(l.in(0).dtype());
  const Dims dims = l.in(0).dims();
  const Value x = l.in(0, compute, dims), t = l.in(1, compute, dims);
  const Value log_x = hlo::max(hlo::log(x), hlo::like(x, -100));
  const Value log_rest = hlo::max(hlo::log1p(-x), hlo::like(x, -100));
  Value losses = (t - 1) * log_rest - t * log_x;
  if (l.has(2)) losses = losses * l.in(2, compute, dims);
  return result(l, reduced(losses, reduction(l, 3)));
}

// (grad_output, self, target, weight, reduction)
Values binary_cross_entropy_backward(Lowering& l) {
  const DType compute = compute_dtype(l.in(1).dtype());
  const Dims dims = l.in(1).dims();
  const Value x = l.in(1, compute, dims), t = l.in(2, compute, dims);
  const Value slope = (x - t) / hlo::max((1 - x) * x, hlo::like(x, 1e-12));
  Value grad =
      slope * spread_gradient(l.in(0), dims, compute, reduction(l, 4), x.type().elements());
  if (l.has(3)) grad = grad * l.in(3, compute, dims);
  return result(l, grad);
}

// (self, target, weight, pos_weight, reduction)
Values binary_cross_entropy_with_logits(Lowering& l) {
  const DType compute = loss_dtype(l, 0, 1);
  Dims dims = broadcast_dims(l.in(0).dims(), l.in(1).dims());
  for (const size_t arg : {2, 3}) {
    if (l.has(arg)) dims = broadcast_dims(dims, l.in(arg).dims());
  }
  const Value x = l.in(0, compute, dims), t = l.in(1, compute, dims);
  // log(sigmoid(x)) without overflow.
  Value log_sigmoid = hlo::min(x, hlo::like(x, 0)) - hlo::log1p(hlo::exp(-hlo::abs(x)));
  if (l.has(3)) log_sigmoid = log_sigmoid * ((l.in(3, compute, dims) - 1) * t + 1);
  Value losses = (1 - t) * x - log_sigmoid;
  if (l.has(2)) losses = losses * l.in(2, compute, dims);
  return result(l, reduced(losses, reduction(l, 4)));
}

// Returns whether so many arguments are floats of one dtype and of one shape; one may be left out.
bool are_alike(MetaCall& call, size_t first, size_t count) {
  const at::Tensor x = call.tensor(first);
  for (size_t i = first; i < first + count; ++i) {
    if (!call.has(i)) continue;
    const at::Tensor y = call.tensor(i);
    if (y.scalar_type() != x.scalar_type() || y.sizes() != x.sizes()) return false;
  }
  return x.is_floating_point();
}

bool is_of_loss(const at::Tensor& grad, const at::Tensor& x) {
  return grad.scalar_type() == x.scalar_type() && (grad.dim() == 0 || grad.sizes() == x.sizes());
}

// (grad_output, self, target, reduction, ..)
void loss_gradient_meta(MetaCall& call) {
  if (are_alike(call, 1, 2) && is_of_loss(call.tensor(0), call.tensor(1))) {
    return like_second(call);
  }
  // PyTorch's Python function divides by the number of elements, which may be 0. The shape is that
  // of the unreduced loss's gradient.
  constexpr size_t kReduction = 3;
  call[kReduction] = int64_t{at::Reduction::None};
  call.pytorch();
}

// (self, target, weight, reduction)
void binary_cross_entropy_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  if (!are_alike(call, 0, 3)) return call.pytorch();
  const bool each = call[3].toInt() == at::Reduction::None;
  call.results({each ? at::empty_like(x) : meta_of_sizes(x, {})});
}

// (grad_output, self, target, weight, reduction)
void binary_cross_entropy_gradient_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(1);
  if (!are_alike(call, 1, 3) || !is_of_loss(call.tensor(0), x)) return call.pytorch();
  call.results({at::empty_like(x)});
}

// (self, target, reduction, delta)
void huber_loss_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0), target = call.tensor(1);
  if (are_alike(call, 0, 2) && call[3].toDouble() > 0) {
    const bool each = call[2].toInt() == at::Reduction::None;
    const at::Tensor losses = meta_of_elementwise({x, target}, x.scalar_type());
    return call.results({each ? losses : meta_of_sizes(x, {})});
  }
  // PyTorch's Python function promotes, its CPU kernel does not.
  check_can_cast(at::result_type(x, target), x.scalar_type());
  call[1] = target.to(x.scalar_type());
  call.pytorch();
}

// (self, target, ..): the target is subtracted from a one of its dtype.
void target_of_bits(const Arguments& a) {
  const bool bits = is_bool(a[1]);
  refuse_bool_subtraction(bits, bits);
}

}  // namespace

const Rules loss_rules([](Registry& r) {
  r.add("aten::mse_loss", loss<squared_error>);
  r.add("aten::mse_loss_backward", loss_backward<squared_error_slope>);
  r.add("aten::smooth_l1_loss", loss<smooth_l1>);
  r.add("aten::smooth_l1_loss_backward", loss_backward<smooth_l1_slope>);
  r.add("aten::huber_loss", loss<huber>);
  r.add("aten::huber_loss_backward", loss_backward<huber_slope>);
  r.add("aten::soft_margin_loss", loss<soft_margin>);
  r.add("aten::soft_margin_loss_backward", loss_backward<soft_margin_slope>);
  r.add("aten::binary_cross_entropy", binary_cross_entropy);
  r.add("aten::binary_cross_entropy_backward", binary_cross_entropy_backward);
  r.add("aten::binary_cross_entropy_with_logits", binary_cross_entropy_with_logits);

  for (const char* name :
       {"aten::mse_loss_backward", "aten::smooth_l1_loss_backward", "aten::huber_loss_backward"}) {
    r.all(name).meta = loss_gradient_meta;
  }
  r.all("aten::huber_loss").meta = huber_loss_meta;
  r.all("aten::binary_cross_entropy_backward").meta = binary_cross_entropy_gradient_meta;
  // CPU autocast runs it in float32, CUDA's refuses it: the gradient that comes back to the narrow
  // probabilities overflows float16. bfloat16 has float32's range.
  r.all("aten::binary_cross_entropy") = {
      .meta = binary_cross_entropy_meta,
      .autocast = Autocast::Float32,
      .refuses_float16 =
          "Use binary_cross_entropy_with_logits on what the sigmoid was applied to, "
          "or disable autocast around the call."};
  r.all("aten::binary_cross_entropy_with_logits").checks_numbers = target_of_bits;
});

}  // namespace torch_xla::ops
