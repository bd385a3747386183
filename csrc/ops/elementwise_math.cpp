// Functions of one operand: rounding, signs, roots, exponentials, logarithms, trigonometry.
#include <cmath>
#include <limits>
#include <numbers>

#include "lazy/operator.h"
#include "ops/elementwise.h"
#include "ops/host_rules.h"
#include "ops/meta.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

// --- signs and rounding ----------------------------------------------------------------------

Value absolute(const Value& x) {
  return x.dtype() == DType::Pred || hlo::is_unsigned(x.dtype()) ? x : hlo::abs(x);
}
// The result of a complex operand is real: computed before the cast that unary_rule makes.
Values abs(Lowering& l) { return result(l, absolute(l.in(0))); }

// 0 for nan, as PyTorch.
Value sign(const Value& x) {
  if (x.dtype() == DType::Pred) return x;
  if (hlo::is_unsigned(x.dtype())) return cast(cast(x, DType::Pred), x.dtype());
  const Value s = hlo::unary("sign", x);
  return hlo::is_float(x.dtype()) ? hlo::select(hlo::is_nan(x), 0.0, s) : s;
}
Value sgn(const Value& x) { return hlo::is_complex(x.dtype()) ? hlo::unary("sign", x) : sign(x); }

template <UnaryFormula formula>
Value floats_only(const Value& x) {
  return hlo::is_float(x.dtype()) ? formula(x) : x;
}
Value round_even(const Value& x) { return hlo::unary("round_nearest_even", x); }
Value frac(const Value& x) { return x - trunc(x); }

Values round_decimals(Lowering& l) {
  const int64_t decimals = l.integer(1);
  const Value x = cast(l.in(0), compute_dtype(l.out().dtype));
  if (!hlo::is_float(x.dtype())) return result(l, x);
  const double scale = std::pow(10.0, std::abs(decimals));
  if (decimals == 0) return result(l, round_even(x));
  // The scale stands as a full constant: dividing by it, not by its rounded reciprocal.
  return result(l, decimals > 0 ? round_even(x * scale) / scale : round_even(x / scale) * scale);
}

Values nan_to_num(Lowering& l) {
  const Value x = l.in(0);
  if (!hlo::is_float(x.dtype()) && !hlo::is_complex(x.dtype())) return result(l, x);
  const auto replace = [&](const Value& part) {
    const Value largest = hlo::finite_highest(l.b, part.type());
    const Value nan = hlo::like(part, l.has(1) ? l.floating(1) : 0.0);
    const Value high = l.has(2) ? hlo::like(part, l.floating(2)) : largest;
    const Value low = l.has(3) ? hlo::like(part, l.floating(3)) : -largest;
    const double infinity = std::numeric_limits<double>::infinity();
    Value y = hlo::select(hlo::is_nan(part), nan, part);
    y = hlo::select(hlo::equal(part, infinity), high, y);
    return hlo::select(hlo::equal(part, -infinity), low, y);
  };
  if (!hlo::is_complex(x.dtype())) return {replace(x)};
  return {hlo::complex(replace(hlo::real(x)), replace(hlo::imag(x)))};
}

// --- roots, exponentials, logarithms -----------------------------------------------------------

Value reciprocal(const Value& x) { return 1.0 / x; }

// Not as a product of complex numbers, in which infinity times an imaginary zero is nan.
Value scaled(const Value& x, double by) {
  if (!hlo::is_complex(x.dtype())) return x * by;
  return hlo::complex(hlo::real(x) * by, hlo::imag(x) * by);
}

// The root of a complex number lies on the side of the real axis on which the number lies, also
// where the sign of a zero tells it.
Value root(const Value& x) {
  const Value y = hlo::sqrt(x);
  if (!hlo::is_complex(x.dtype())) return y;
  const Value size = hlo::abs(hlo::imag(y));
  return hlo::complex(hlo::real(y), hlo::select(sign_bit(hlo::imag(x)), -size, size));
}
Value inverse_root(const Value& x) {
  return hlo::is_complex(x.dtype()) ? 1.0 / root(x) : hlo::rsqrt(x);
}

// For infinity in a direction that is not known: as far as C++ says, and zero for minus infinity.
Value power_of_e(const Value& x) {
  const Value y = hlo::exp(x);
  if (!hlo::is_complex(x.dtype())) return y;
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  const Value size = hlo::real(x), angle = hlo::imag(x);
  const Value lost = hlo::is_nan(angle - angle);
  const auto part = [&](double at_infinity, const Value& otherwise) {
    const Value inward = hlo::select(hlo::equal(size, -kInfinity) & lost, 0.0, otherwise);
    return hlo::select(hlo::equal(size, kInfinity) & lost, at_infinity, inward);
  };
  return hlo::complex(part(kInfinity, hlo::real(y)), part(kNan, hlo::imag(y)));
}

// By a power of 2 rather than exp(x ln 2), whose error grows with x.
Value exp2(const Value& x) {
  if (hlo::is_complex(x.dtype())) return power_of_e(scaled(x, std::numbers::ln2));
  return hlo::pow(hlo::like(x, 2), x);
}
Value log2(const Value& x) { return scaled(hlo::log(x), 1 / std::numbers::ln2); }
Value log10(const Value& x) { return scaled(hlo::log(x), 1 / std::numbers::ln10); }

Value sigmoid(const Value& x) {
  return hlo::is_complex(x.dtype()) ? 1.0 / (power_of_e(-x) + 1) : hlo::logistic(x);
}

// log(x / (1 - x)) of x held within [eps, 1 - eps].
Values logit(Lowering& l) {
  Value x = cast(l.in(0), compute_dtype(l.out().dtype));
  if (l.has(1)) {
    const double eps = l.floating(1);
    x = hlo::select(hlo::less(x, eps), eps, hlo::select(hlo::greater(x, 1 - eps), 1 - eps, x));
  }
  return result(l, hlo::log(x / (1.0 - x)));
}

Values logit_backward(Lowering& l) {
  const DType compute = compute_dtype(l.out().dtype);
  const Value grad = operand(l, 0, compute);
  const Value x = operand(l, 1, compute);
  const Value slope = grad / (x * (1.0 - x));
  const double eps = l.has(2) ? l.floating(2) : -1;
  if (eps < 0) {
    const Value outside = hlo::less(x, 0) | hlo::greater(x, 1);
    return result(l, hlo::select(outside, std::numeric_limits<double>::quiet_NaN(), slope));
  }
  return result(l, hlo::select(hlo::less(x, eps) | hlo::greater(x, 1 - eps), 0.0, slope));
}

// --- trigonometry ------------------------------------------------------------------------------

Value asin(const Value& x) { return hlo::chlo_unary("asin", x); }
Value acos(const Value& x) { return hlo::chlo_unary("acos", x); }
Value atan(const Value& x) { return hlo::chlo_unary("atan", x); }
Value asinh(const Value& x) { return hlo::chlo_unary("asinh", x); }
Value acosh(const Value& x) { return hlo::chlo_unary("acosh", x); }
Value atanh(const Value& x) { return hlo::chlo_unary("atanh", x); }

// Half of e^|x|, in two factors: XLA's way, e^(|x| - ln 2), loses the digits of the difference.
Value half_power(const Value& x) {
  const Value root = hlo::exp(hlo::abs(x) * 0.5);
  return root * 0.5 * root;
}
Value real_sinh(const Value& x) {
  const Value y = half_power(x), size = y - 0.25 / y;
  const Value large = hlo::select(hlo::less(x, 0), -size, size);
  return hlo::select(hlo::less(hlo::abs(x), 1), hlo::chlo_unary("sinh", x), large);
}
Value real_cosh(const Value& x) {
  const Value y = half_power(x);
  return y + 0.25 / y;
}

// The functions below of a complex number a + bi are made of the real ones of a and b: by powers of
// e, as XLA has them, digits are lost near zeros and poles. At infinities as C's (C17, annex G).

// Value `size`, of a, turned: by the cosine of b, which is nan for a direction that is not known.
Value along(const Value& size, const Value& cosine) {
  const Value lost = hlo::select(hlo::equal(size, 0), size, hlo::abs(size));
  const Value is_lost = hlo::is_nan(cosine) & (hlo::equal(size, 0) | is_inf(size));
  return hlo::select(is_lost, lost, size * cosine);
}
// And by the sine of b, which is zero for real numbers.
Value across(const Value& size, const Value& sine) {
  const Value is_lost = hlo::is_nan(sine) & hlo::equal(size, 0);
  const Value zero = hlo::select(sign_bit(size), -sine, sine);
  return hlo::select(hlo::equal(sine, 0), zero, hlo::select(is_lost, hlo::abs(size), size * sine));
}

Value sinh(const Value& x) {
  if (!hlo::is_complex(x.dtype())) return real_sinh(x);
  const Value a = hlo::real(x), b = hlo::imag(x);
  return hlo::complex(along(real_sinh(a), hlo::cos(b)), across(real_cosh(a), hlo::sin(b)));
}
Value cosh(const Value& x) {
  if (!hlo::is_complex(x.dtype())) return real_cosh(x);
  const Value a = hlo::real(x), b = hlo::imag(x);
  return hlo::complex(along(real_cosh(a), hlo::cos(b)), across(real_sinh(a), hlo::sin(b)));
}

// W. Kahan, Branch cuts for complex elementary functions, 1987; far out by the first terms.
Value tanh(const Value& x) {
  if (!hlo::is_complex(x.dtype())) return hlo::tanh(x);
  const Value a = hlo::real(x), b = hlo::imag(x);
  const Value tangent = hlo::chlo_unary("tan", b), slope = tangent * tangent + 1;
  const Value s = real_sinh(a), scale = slope * s * s + 1;
  const Value is_far = hlo::greater(hlo::abs(a), 20);
  const Value size = hlo::exp(hlo::abs(a) * -2) * 4, turn = hlo::sin(b) * hlo::cos(b);
  const Value is_lost = hlo::equal(size, 0) & hlo::is_nan(turn);
  const Value far = hlo::select(is_lost, size, size * turn);
  const Value near = slope * hlo::sqrt(s * s + 1) * s / scale;
  const Value along = hlo::select(is_far, hlo::unary("sign", a), near);
  const Value across = hlo::select(is_far, far, tangent / scale);
  return hlo::complex(hlo::select(hlo::equal(a, 0), a, along),
                      hlo::select(hlo::equal(b, 0), b, across));
}

// i g(-ix), which is the sine for g = sinh and the tangent for g = tanh.
Value turned(const Value& x, UnaryFormula g) {
  const Value y = g(hlo::complex(hlo::imag(x), -hlo::real(x)));
  return hlo::complex(-hlo::imag(y), hlo::real(y));
}
Value sine(const Value& x) { return hlo::is_complex(x.dtype()) ? turned(x, sinh) : hlo::sin(x); }
Value tan(const Value& x) {
  return hlo::is_complex(x.dtype()) ? turned(x, tanh) : hlo::chlo_unary("tan", x);
}
Value cosine(const Value& x) {
  if (!hlo::is_complex(x.dtype())) return hlo::cos(x);
  return cosh(hlo::complex(-hlo::imag(x), hlo::real(x)));
}

Value sinc(const Value& x) {
  const Value angle = x * std::numbers::pi;
  return hlo::select(hlo::equal(x, 0), 1.0, sine(angle) / angle);
}

// XLA's CPU backend computes these functions one element after another, PyTorch many at a time.
Values vectorized_on_host(Lowering& l) {
  constexpr int64_t kLeast = 4096;
  const hlo::Type& type = l.out();
  const bool faster = is_whole_float(type.dtype) && type.elements() >= kLeast;
  if (!choose_host(faster)) return xla_code(l);
  const hlo::Dims flat = {type.elements()};
  HostCall call(l.b, l.signature().op->name, Fails::Never);
  call.part(hlo::reshape(cast(l.in(0), type.dtype), flat), 0);
  return {hlo::reshape(call.result({type.dtype, flat}, 0), type.dims)};
}

}  // namespace

// Composite operators recorded whole on purpose: abs, nan_to_num.
const Rules elementwise_math_rules([](Registry& r) {
  r.add("aten::abs", abs);
  r.all("aten::abs").meta = parts_like_first;
  r.add("aten::neg", unary_rule<hlo::neg>);
  r.add("aten::sign", unary_rule<sign>);
  r.add("aten::sgn", unary_rule<sgn>);
  r.add("aten::ceil", unary_rule<floats_only<hlo::ceil>>);
  r.add("aten::floor", unary_rule<floats_only<hlo::floor>>);
  r.add("aten::trunc", unary_rule<trunc>);
  r.add("aten::round", unary_rule<floats_only<round_even>>);
  r.add("aten::round.decimals", round_decimals);
  r.add("aten::frac", unary_rule<frac>);
  r.add("aten::nan_to_num", nan_to_num);
  r.all("aten::nan_to_num").meta = floats_like_first;

  r.add("aten::reciprocal", unary_rule<reciprocal>);
  r.add("aten::sqrt", unary_rule<root>);
  r.add("aten::rsqrt", unary_rule<inverse_root>);
  r.add("aten::exp", unary_rule<power_of_e>);
  r.add("aten::exp2", unary_rule<exp2, Steps::Many>);
  r.add("aten::expm1", unary_rule<hlo::expm1>);
  r.add("aten::log", unary_rule<hlo::log>);
  r.add("aten::log1p", unary_rule<hlo::log1p>).on_cpu = vectorized_on_host;
  r.add("aten::log2", unary_rule<log2, Steps::Many>);
  r.add("aten::log10", unary_rule<log10, Steps::Many>);
  r.add("aten::sigmoid", unary_rule<sigmoid>);
  r.add("aten::logit", logit);
  r.all("aten::logit").meta = floats_like_first;
  r.add("aten::logit_backward", logit_backward);

  r.add("aten::sin", unary_rule<sine>).on_cpu = vectorized_on_host;
  r.add("aten::cos", unary_rule<cosine>).on_cpu = vectorized_on_host;
  r.add("aten::tan", unary_rule<tan, Steps::Many>).on_cpu = vectorized_on_host;
  r.add("aten::asin", unary_rule<asin, Steps::Many>).on_cpu = vectorized_on_host;
  r.add("aten::acos", unary_rule<acos, Steps::Many>).on_cpu = vectorized_on_host;
  r.add("aten::atan", unary_rule<atan, Steps::Many>).on_cpu = vectorized_on_host;
  r.add("aten::sinh", unary_rule<sinh, Steps::Many>);
  r.add("aten::cosh", unary_rule<cosh, Steps::Many>);
  r.add("aten::tanh", unary_rule<tanh>);
  r.add("aten::asinh", unary_rule<asinh, Steps::Many>);
  r.add("aten::acosh", unary_rule<acosh, Steps::Many>);
  r.add("aten::atanh", unary_rule<atanh, Steps::Many>);
  r.add("aten::sinc", unary_rule<sinc, Steps::Many>);
});

}  // namespace torch_xla::ops
