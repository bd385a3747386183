#include <cmath>
#include <numbers>
#include <stdexcept>
#include <string>

#include "lazy/operator.h"
#include "ops/elementwise.h"
#include "ops/host_rules.h"
#include "ops/meta.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

// Operand `arg` in the type in which PyTorch computes this activation.
Value input(Lowering& l, size_t arg) { return operand(l, arg, compute_dtype(l.out().dtype)); }

Value sigmoid(const Value& x) { return hlo::logistic(x); }

// --- piecewise linear ------------------------------------------------------------------------

Values relu(Lowering& l) {
  const Value x = l.in(0);
  if (x.dtype() == DType::Pred) not_implemented("relu_cpu", l.in_dtype(0));
  return {hlo::max(x, hlo::like(x, 0))};
}

Values threshold(Lowering& l) {
  const Value x = input(l, 0);
  return result(l, hlo::select(hlo::less_equal(x, number_like(l, 1, x)), number_like(l, 2, x), x));
}
// Also relu's: nan passes the gradient on.
Values threshold_backward(Lowering& l) {
  const Value x = input(l, 1);
  return result(
      l, hlo::select(hlo::less_equal(x, number_like(l, 2, x)), 0.0, operand(l, 0, x.dtype())));
}

Values hardtanh_backward(Lowering& l) {
  const Value x = input(l, 1);
  const Value outside =
      hlo::less_equal(x, number_like(l, 2, x)) | hlo::greater_equal(x, number_like(l, 3, x));
  return result(l, hlo::select(outside, 0.0, input(l, 0)));
}

Values leaky_relu(Lowering& l) {
  const Value x = input(l, 0);
  return result(l, hlo::select(hlo::greater(x, 0), x, x * number_like(l, 1, x)));
}
Values leaky_relu_backward(Lowering& l) {
  const Value grad = input(l, 0);
  const Value x = input(l, 1);
  return result(l, hlo::select(hlo::greater(x, 0), grad, grad * number_like(l, 2, x)));
}

Values prelu(Lowering& l) {
  const Value x = input(l, 0);
  return result(l, hlo::select(hlo::greater(x, 0), x, input(l, 1) * x));
}
Values prelu_backward(Lowering& l) {
  const Value grad = input(l, 0);
  const Value x = input(l, 1);
  const Value positive = hlo::greater(x, 0);
  return {as_result(l, hlo::select(positive, grad, input(l, 2) * grad), 0),
          as_result(l, hlo::select(positive, 0.0, x * grad), 1)};
}

// relu6(x + 3)
Value gate(const Value& x) { return hlo::min(hlo::max(x + 3, hlo::like(x, 0)), hlo::like(x, 6)); }

Value hardsigmoid(const Value& x) { return gate(x) / 6; }
Values hardsigmoid_backward(Lowering& l) {
  const Value x = input(l, 1);
  const Value inside = hlo::greater(x, -3) & hlo::less(x, 3);
  return result(l, hlo::select(inside, input(l, 0) / 6, 0.0));
}
Value hardswish(const Value& x) { return x * gate(x) / 6; }
Values hardswish_backward(Lowering& l) {
  const Value grad = input(l, 0);
  const Value x = input(l, 1);
  const Value middle = grad * (x / 3 + 0.5);
  return result(
      l, hlo::select(hlo::less_equal(x, -3), 0.0, hlo::select(hlo::less(x, 3), middle, grad)));
}

Values hardshrink(Lowering& l) {
  const Value x = input(l, 0);
  const Value bound = number_like(l, 1, x);
  return result(l, hlo::select(hlo::greater_equal(x, -bound) & hlo::less_equal(x, bound), 0.0, x));
}
// x * 0 keeps nan.
Values softshrink(Lowering& l) {
  const Value x = input(l, 0);
  const Value bound = number_like(l, 1, x);
  return result(l, hlo::select(hlo::greater(x, bound), x - bound,
                               hlo::select(hlo::less(x, -bound), x + bound, x * 0)));
}
Values shrink_backward(Lowering& l) {
  const Value x = input(l, 1);
  const Value bound = number_like(l, 2, x);
  return result(
      l, hlo::select(hlo::greater_equal(x, -bound) & hlo::less_equal(x, bound), 0.0, input(l, 0)));
}

// --- exponential units -------------------------------------------------------------------------

// (x, alpha, scale, input_scale)
Values elu(Lowering& l) {
  const Value x = input(l, 0);
  const Value scale = number_like(l, 2, x);
  const Value negative = hlo::expm1(x * number_like(l, 3, x)) * (number_like(l, 1, x) * scale);
  return result(l, hlo::select(hlo::less(x, 0), negative, x * scale));
}
// (grad, alpha, scale, input_scale, is_result, self_or_result)
Values elu_backward(Lowering& l) {
  const Value grad = input(l, 0);
  const Value x = input(l, 5);
  const Value scale = number_like(l, 2, x);
  const Value below = number_like(l, 1, x) * scale;
  const Value input_scale = number_like(l, 3, x);
  const Value slope = l.flag(4) ? x + below : below * hlo::exp(x * input_scale);
  return result(l, hlo::select(hlo::less_equal(x, 0), grad * input_scale * slope, grad * scale));
}

Value silu(const Value& x) { return x * sigmoid(x); }
Values silu_backward(Lowering& l) {
  const Value x = input(l, 1);
  const Value s = sigmoid(x);
  return result(l, input(l, 0) * s * (x * (1.0 - s) + 1));
}

Value mish(const Value& x) { return x * hlo::tanh(hlo::log1p(hlo::exp(x))); }
Values mish_backward(Lowering& l) {
  const Value x = input(l, 1);
  const Value t = hlo::tanh(hlo::log1p(hlo::exp(x)));
  return result(l, input(l, 0) * (t + x * sigmoid(x) * (1.0 - t * t)));
}

// (x, beta, threshold)
Values softplus(Lowering& l) {
  const Value x = input(l, 0);
  const Value beta = number_like(l, 1, x);
  const Value scaled = x * beta;
  return result(l, hlo::select(hlo::greater(scaled, number_like(l, 2, x)), x,
                               hlo::log1p(hlo::exp(scaled)) / beta));
}
Values softplus_backward(Lowering& l) {
  const Value grad = input(l, 0);
  const Value x = input(l, 1);
  const Value scaled = x * number_like(l, 2, x);
  return result(
      l, hlo::select(hlo::greater(scaled, number_like(l, 3, x)), grad, grad * sigmoid(scaled)));
}

// The second result is what PyTorch's CPU backward reads; ours computes from the input alone.
Values log_sigmoid_forward(Lowering& l) {
  const Value x = input(l, 0);
  const Value decay = hlo::exp(-hlo::abs(x));
  const Value y = hlo::min(x, hlo::like(x, 0)) - hlo::log1p(decay);
  const bool has_buffer = l.out(1).dims == x.dims();
  return {as_result(l, y, 0), has_buffer ? as_result(l, decay, 1) : hlo::zero(l.b, l.out(1))};
}
Values log_sigmoid_backward(Lowering& l) { return result(l, input(l, 0) * sigmoid(-input(l, 1))); }

Values sigmoid_backward(Lowering& l) {
  const Value grad = input(l, 0);
  const Value y = input(l, 1);
  Value slope = (1.0 - y) * y;
  if (hlo::is_complex(y.dtype())) slope = hlo::complex(hlo::real(slope), -hlo::imag(slope));
  return result(l, grad * slope);
}
Values tanh_backward(Lowering& l) {
  const Value grad = input(l, 0);
  const Value y = input(l, 1);
  Value slope = 1.0 - y * y;
  if (hlo::is_complex(y.dtype())) slope = hlo::complex(hlo::real(slope), -hlo::imag(slope));
  return result(l, grad * slope);
}

// --- gelu --------------------------------------------------------------------------------------

constexpr double kGeluCubic = 0.044715;
const double kGeluScale = std::sqrt(2 / std::numbers::pi);

bool is_tanh_gelu(const Lowering& l, size_t arg) {
  const std::string approximate = l.text(arg);
  if (approximate == "tanh") return true;
  if (approximate == "none") return false;
  throw std::invalid_argument("approximate argument must be either none or tanh.");
}

Values gelu(Lowering& l) {
  const Value x = input(l, 0);
  if (is_tanh_gelu(l, 1)) {
    const Value inner = (x + x * x * x * kGeluCubic) * kGeluScale;
    return result(l, 0.5 * x * (hlo::tanh(inner) + 1));
  }
  return result(l, 0.5 * x * (hlo::erf(x * (1 / std::numbers::sqrt2)) + 1));
}

// PyTorch's error function takes half of the time of XLA's, where there are enough elements for a
// kernel of its own.
Values gelu_on_host(Lowering& l) {
  constexpr int64_t kLeast = 32768;
  const hlo::Type& type = l.out();
  const bool faster = is_whole_float(type.dtype) && type.elements() >= kLeast;
  if (is_empty(l, {0}) || !choose_host(faster && !is_tanh_gelu(l, 1))) return xla_code(l);
  const hlo::Dims flat = {type.elements()};
  HostCall call(l.b, l.signature().op->name, Fails::Never);
  call.part(hlo::reshape(l.in(0), flat), 0).fixed(l.text(1));
  return {hlo::reshape(call.result({type.dtype, flat}, 0), type.dims)};
}

Values gelu_backward(Lowering& l) {
  const Value grad = input(l, 0);
  const Value x = input(l, 1);
  if (is_tanh_gelu(l, 2)) {
    const Value t = hlo::tanh((x + x * x * x * kGeluCubic) * kGeluScale);
    const Value inner_slope = (x * x * (3 * kGeluCubic) + 1) * kGeluScale;
    return result(l, grad * (0.5 * (t + 1) + 0.5 * x * (1.0 - t * t) * inner_slope));
  }
  const Value cdf = 0.5 * (hlo::erf(x * (1 / std::numbers::sqrt2)) + 1);
  const Value pdf = hlo::exp(x * x * -0.5) * (1 / std::sqrt(2 * std::numbers::pi));
  return result(l, grad * (cdf + x * pdf));
}

// --- gated linear unit ---------------------------------------------------------------------------

std::pair<Value, Value> halves(const Value& x, int64_t dim) {
  const int64_t half = x.dim(dim) / 2;
  return {hlo::slice_dim(x, dim, 0, half), hlo::slice_dim(x, dim, half, 2 * half)};
}

Values glu(Lowering& l) {
  const Value x = cast(l.in(0), compute_dtype(l.out().dtype));
  const auto [value, control] = halves(x, wrap_dim(l.integer(1), x.rank()));
  return result(l, value * sigmoid(control));
}
Values glu_backward(Lowering& l) {
  const DType compute = compute_dtype(l.out().dtype);
  const Value grad = cast(l.in(0), compute);
  const Value x = cast(l.in(1), compute);
  const int64_t dim = wrap_dim(l.integer(2), x.rank());
  const auto [value, control] = halves(x, dim);
  const Value s = sigmoid(control);
  const Values parts = {grad * s, grad * value * s * (1.0 - s)};
  return result(l, hlo::concatenate(parts, dim));
}

// log_sigmoid_forward(self) -> (output, buffer)
void log_sigmoid_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  if (!x.is_floating_point()) return call.pytorch();
  const auto result = [&] { return meta_of_elementwise({x}, x.scalar_type()); };
  call.results({result(), result()});
}

}  // namespace

// hardtanh is a clamp (elementwise.cpp). celu, selu, relu6 and rrelu stay composite: each is one of
// these. silu_backward and mish_backward are composites recorded whole on purpose: one node for
// six.
const Rules activation_rules([](Registry& r) {
  r.add("aten::relu", relu);
  r.add("aten::threshold", threshold);
  r.add("aten::threshold_backward", threshold_backward);
  r.add("aten::hardtanh_backward", hardtanh_backward);
  r.add("aten::leaky_relu", leaky_relu);
  r.add("aten::leaky_relu_backward", leaky_relu_backward);
  r.add("aten::_prelu_kernel", prelu);
  r.add("aten::_prelu_kernel_backward", prelu_backward);
  r.add("aten::hardsigmoid", unary_rule<hardsigmoid, Steps::Many>);
  r.add("aten::hardsigmoid_backward", hardsigmoid_backward);
  r.add("aten::hardswish", unary_rule<hardswish, Steps::Many>);
  r.add("aten::hardswish_backward", hardswish_backward);
  r.add("aten::hardshrink", hardshrink);
  r.add("aten::hardshrink_backward", shrink_backward);
  r.add("aten::softshrink", softshrink);
  r.add("aten::softshrink_backward", shrink_backward);
  r.add("aten::elu", elu);
  r.add("aten::elu_backward", elu_backward);
  r.add("aten::silu", unary_rule<silu, Steps::Many>);
  r.add("aten::silu_backward", silu_backward);
  r.add("aten::mish", unary_rule<mish, Steps::Many>);
  r.add("aten::mish_backward", mish_backward);
  r.add("aten::softplus", softplus);
  r.add("aten::softplus_backward", softplus_backward);
  r.add("aten::log_sigmoid_forward", log_sigmoid_forward);
  r.add("aten::log_sigmoid_backward", log_sigmoid_backward);
  r.add("aten::sigmoid_backward", sigmoid_backward);
  r.add("aten::tanh_backward", tanh_backward);
  r.add("aten::gelu", gelu).on_cpu = gelu_on_host;
  r.add("aten::gelu_backward", gelu_backward);
  r.add("aten::glu", glu);
  r.add("aten::glu_backward", glu_backward);

  r.all("aten::threshold").writes_repeated = true;

  for (const char* name : {"aten::relu", "aten::hardswish"}) r.all(name).meta = floats_like_first;
  for (const char* name :
       {"aten::hardswish_backward", "aten::hardtanh_backward", "aten::log_sigmoid_backward"}) {
    r.all(name).meta = floats_like_pair;
  }
  r.all("aten::log_sigmoid_forward").meta = log_sigmoid_meta;
  r.all("aten::glu_backward").meta = like_second;
});

}  // namespace torch_xla::ops
