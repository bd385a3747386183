#include "ops/elementwise.h"

#include <cmath>
#include <limits>

#include <ATen/ScalarOps.h>
#include <ATen/ops/div_meta_dispatch.h>

#include "ops/meta.h"
#include "ops/value_checks.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

bool takes_float_path(const Value& x) { return hlo::is_float(x.dtype()); }

// --- sums and products ---------------------------------------------------------------------

// x + alpha * y, with the usual alpha of 1 left out.
template <BinaryFormula combine>
Values with_alpha(Lowering& l) {
  if (is_static_number(l, 2, 1)) return binary_rule<combine, Steps::One>(l);
  const DType compute = compute_dtype(l.out().dtype);
  const Value y = operand(l, 1, compute);
  return result(l, combine(operand(l, 0, compute), y * number_like(l, 2, y)));
}

// y - alpha * x
Values rsub(Lowering& l) {
  const DType compute = compute_dtype(l.out().dtype);
  Value x = operand(l, 0, compute);
  if (!is_static_number(l, 2, 1)) x = x * number_like(l, 2, x);
  return result(l, operand(l, 1, compute) - x);
}

Values addcmul(Lowering& l) {
  const DType compute = compute_dtype(l.out().dtype);
  Value product = operand(l, 1, compute);
  if (!is_static_number(l, 3, 1)) product = number_like(l, 3, product) * product;
  return result(l, operand(l, 0, compute) + product * operand(l, 2, compute));
}

Values addcdiv(Lowering& l) {
  const DType compute = compute_dtype(l.out().dtype);
  Value top = operand(l, 1, compute);
  if (!is_static_number(l, 3, 1)) top = number_like(l, 3, top) * top;
  return result(l, operand(l, 0, compute) + top / operand(l, 2, compute));
}

// Whichever end is nearer carries the rounding, so that weight 1 gives exactly `end`.
Values lerp(Lowering& l) {
  const DType compute = compute_dtype(l.out().dtype);
  const Value start = operand(l, 0, compute);
  const Value end = operand(l, 1, compute);
  const Value weight = operand(l, 2, compute);
  return result(l, hlo::select(hlo::less(hlo::abs(weight), 0.5), start + weight * (end - start),
                               end - (end - start) * (1.0 - weight)));
}

// --- division ------------------------------------------------------------------------------

// Returns whether a remainder must move by one divisor to take the divisor's sign.
Value wrong_sign(const Value& remainder, const Value& divisor) {
  const Value differ = hlo::logical_xor(hlo::less(remainder, 0), hlo::less(divisor, 0));
  return hlo::not_equal(remainder, 0) & differ;
}

Value divide_trunc(const Value& x, const Value& y) { return trunc(x / y); }

Value divide_floor(const Value& x, const Value& y) {
  if (hlo::is_unsigned(x.dtype())) return x / y;
  const Value remainder = hlo::rem(x, y);
  if (!takes_float_path(x)) {
    const Value quotient = x / y;
    return hlo::select(wrong_sign(remainder, y), quotient - 1, quotient);
  }
  // Python's floor division: exact where x / y would round across an integer.
  Value quotient = (x - remainder) / y;
  quotient = hlo::select(wrong_sign(remainder, y), quotient - 1, quotient);
  Value floored = hlo::floor(quotient);
  floored = hlo::select(hlo::greater(quotient - floored, 0.5), floored + 1, floored);
  const Value ratio = x / y;
  const Value zero = hlo::select(sign_bit(ratio), -0.0, hlo::like(x, 0));
  floored = hlo::select(hlo::equal(quotient, 0), zero, floored);
  return hlo::select(hlo::equal(y, 0), ratio, floored);
}

// The remainder takes the divisor's sign (Python's %); fmod's takes the dividend's.
Value remainder_floor(const Value& x, const Value& y) {
  const Value remainder = hlo::rem(x, y);
  if (hlo::is_unsigned(x.dtype())) return remainder;
  return hlo::select(wrong_sign(remainder, y), remainder + y, remainder);
}

// PyTorch rounds narrow floats after each step, but where one element divides all: what lies just
// below a whole number counts as that number.
template <BinaryFormula formula>
Values whole_quotient(Lowering& l) {
  const bool one_divisor = l.in(1).type().elements() == 1;
  return one_divisor ? binary_rule<formula>(l) : binary_rule<formula, Steps::One>(l);
}

Values divide_mode(Lowering& l) {
  if (!l.has(2)) return binary_rule<hlo::div, Steps::One>(l);
  return l.text(2) == "floor" ? whole_quotient<divide_floor>(l) : whole_quotient<divide_trunc>(l);
}

// --- powers --------------------------------------------------------------------------------

// Integer powers wrap around; a negative exponent leaves 0 but for bases 1 and -1.
Value integer_power(const Value& base, const Value& exponent) {
  if (base.dtype() == DType::Pred) return base | ~exponent;
  const Value power = hlo::pow(base, hlo::max(exponent, hlo::like(exponent, 0)));
  if (hlo::is_unsigned(base.dtype())) return power;
  const Value odd = hlo::not_equal(hlo::logical_and(exponent, hlo::like(exponent, 1)), 0);
  const Value sign = hlo::select(odd, hlo::like(base, -1), hlo::like(base, 1));
  Value inverse = hlo::select(hlo::equal(base, 1), hlo::like(base, 1), hlo::like(base, 0));
  inverse = hlo::select(hlo::equal(base, -1), sign, inverse);
  return hlo::select(hlo::less(exponent, 0), inverse, power);
}

Value power(const Value& base, const Value& exponent) {
  const bool integral = !hlo::is_float(base.dtype()) && !hlo::is_complex(base.dtype());
  return integral ? integer_power(base, exponent) : hlo::pow(base, exponent);
}

// The exponents that programs write are cheaper and more exact as products and roots.
Values power_of_number(Lowering& l) {
  const c10::Scalar exponent = l.attr(1).toScalar();
  const DType compute = compute_dtype(l.out().dtype);
  const Value x = operand(l, 0, compute);
  if (exponent.isComplex()) return result(l, power(x, number_like(l, 1, x)));
  const double e = exponent.toDouble();
  const bool floating = hlo::is_float(compute) || hlo::is_complex(compute);
  if (e == 0) return result(l, hlo::like(x, 1));
  if (e == 1) return result(l, x);
  if (compute == DType::Pred) return result(l, x);
  if (e == 2) return result(l, x * x);
  if (e == 3) return result(l, x * x * x);
  if (e == 4) return result(l, (x * x) * (x * x));
  if (floating) {
    if (e == 0.5) return result(l, hlo::sqrt(x));
    if (e == -0.5) return result(l, hlo::rsqrt(x));
    if (e == -1) return result(l, 1.0 / x);
    if (e == -2) return result(l, 1.0 / (x * x));
  }
  return result(l, power(x, number_like(l, 1, x)));
}

// --- the larger and the smaller ------------------------------------------------------------

// maximum and minimum hand on nan; fmax and fmin prefer the number.
template <BinaryFormula extreme>
Value ignoring_nan(const Value& x, const Value& y) {
  if (!takes_float_path(x)) return extreme(x, y);
  return hlo::select(hlo::is_nan(x), y, hlo::select(hlo::is_nan(y), x, extreme(x, y)));
}

// A bound that is nan makes every element nan, as stablehlo.maximum and minimum do.
Value bounded(Lowering& l, const Value& x, std::optional<size_t> low, std::optional<size_t> high) {
  Value y = x;
  if (low && l.has(*low)) y = hlo::max(y, operand(l, *low, x.dtype()));
  if (high && l.has(*high)) y = hlo::min(y, operand(l, *high, x.dtype()));
  return y;
}

Values clamp(Lowering& l) {
  return result(l, bounded(l, operand(l, 0, compute_dtype(l.out().dtype)), 1, 2));
}
Values clamp_min(Lowering& l) {
  return result(l, bounded(l, operand(l, 0, compute_dtype(l.out().dtype)), 1, std::nullopt));
}
Values clamp_max(Lowering& l) {
  return result(l, bounded(l, operand(l, 0, compute_dtype(l.out().dtype)), std::nullopt, 1));
}

// --- the rest ------------------------------------------------------------------------------

Value copysign(const Value& x, const Value& y) {
  const Value size = hlo::abs(x);
  return hlo::select(sign_bit(y), -size, size);
}

Value hypot(const Value& x, const Value& y) {
  const Value a = hlo::abs(x);
  const Value b = hlo::abs(y);
  const Value large = hlo::max(a, b);
  const Value ratio = hlo::select(hlo::equal(large, 0), 0.0, hlo::min(a, b) / large);
  const Value length = large * hlo::sqrt(ratio * ratio + 1);
  return hlo::select(is_inf(a) | is_inf(b), std::numeric_limits<double>::infinity(), length);
}

Value logaddexp2(const Value& x, const Value& y) {
  const Value large = hlo::max(x, y);
  const Value gap = -hlo::abs(x - y);
  const Value sum = large + hlo::log1p(hlo::exp(gap * std::log(2.0))) * (1 / std::log(2.0));
  return hlo::select(is_inf(x) & hlo::equal(x, y), x, sum);
}

Value heaviside(const Value& x, const Value& at_zero) {
  const Value step = hlo::convert(hlo::greater(x, hlo::like(x, 0)), x.dtype());
  return hlo::select(hlo::equal(x, 0), at_zero, step);
}

// The neighbour in the result's own dtype, which a wider compute type would miss.
Values nextafter(Lowering& l) {
  const DType dtype = l.out().dtype;
  return {hlo::chlo_binary("next_after", operand(l, 0, dtype), operand(l, 1, dtype))};
}

// Euclid, all elements together: an element that has reached zero waits for the others.
Value gcd(const Value& x, const Value& y) {
  const bool has_sign = !hlo::is_unsigned(x.dtype());
  const Values start = {has_sign ? hlo::abs(x) : x, has_sign ? hlo::abs(y) : y};
  const auto running = [](std::span<const Value> s) {
    const Value any = hlo::not_equal(s[1], 0);
    return hlo::reduce(any, hlo::zero(any.builder(), {DType::Pred, {}}), all_dims(any.rank()),
                       hlo::logical_or);
  };
  const auto step = [](std::span<const Value> s) {
    const Value done = hlo::equal(s[1], 0);
    const Value divisor = hlo::select(done, 1, s[1]);
    return Values{hlo::select(done, s[0], s[1]),
                  hlo::select(done, hlo::like(s[1], 0), hlo::rem(s[0], divisor))};
  };
  return hlo::while_loop(start, running, step)[0];
}

// In 32 bits at least, as in C++, so that a product that wraps has PyTorch's sign.
Value lcm(const Value& of_x, const Value& of_y) {
  const bool narrow = of_x.dtype() == DType::S8 || of_x.dtype() == DType::S16;
  const DType wide = narrow ? DType::S32 : of_x.dtype();
  const Value x = hlo::convert(of_x, wide), y = hlo::convert(of_y, wide);
  const Value divisor = gcd(x, y);
  const Value quotient = x / hlo::select(hlo::equal(divisor, 0), 1, divisor);
  const Value product = quotient * y;
  return hlo::is_unsigned(x.dtype()) ? product : hlo::abs(product);
}

}  // namespace

// Composite operators that are recorded whole on purpose, because their composite is a copy of a
// number to the device and a second call: add/sub/mul/div/rsub.Scalar, div.Scalar_mode,
// floor_divide.Scalar, remainder and fmod.Scalar, copysign.Scalar.
namespace {

// (self, other, ..)
void reversed_subtraction(const Arguments& a) {
  refuse_bool_subtraction(is_bool(a[0]), is_bool(a[1]));
}

// (self, other): the strides are those of a quotient that is not rounded.
void floor_divide_meta(MetaCall& call) {
  const c10::IValue& by = call[1];
  const at::Tensor divisor =
      by.isTensor() ? by.toTensor() : at::native::wrapped_scalar_tensor(by.toScalar(), at::kMeta);
  call.results({at::meta::div(call.tensor(0), divisor, "floor")});
}

bool is_integer(const c10::IValue& v) {
  return v.isTensor() ? at::isIntegralType(v.toTensor().scalar_type(), /*includeBool=*/true)
                      : v.isInt() || v.isBool();
}

// (dividend, divisor, ..): integers, and a divisor of which some element may be zero. That of a
// narrow dividend has its low bits.
bool by_zero(const KnownArguments& a) {
  const c10::IValue &dividend = a[0], &divisor = a[1];
  if (!is_integer(dividend) || !is_integer(divisor)) return false;
  if (!divisor.isTensor() || divisor.toTensor().is_cpu()) {
    const int64_t number =
        divisor.isTensor() ? divisor.toTensor().item<int64_t>() : divisor.toScalar().toLong();
    const bool narrow = dividend.isTensor() && dividend.toTensor().scalar_type() != at::kBool;
    const size_t bits = narrow ? 8 * dividend.toTensor().element_size() : 64;
    return number << (64 - bits) == 0;
  }
  const std::optional<at::Tensor> known = a.known(divisor.toTensor());
  return known && known->numel() != 0 && known->count_nonzero().item<int64_t>() != known->numel();
}

}  // namespace

bool is_bool(const c10::IValue& v) {
  return v.isTensor() ? v.toTensor().scalar_type() == at::kBool : v.isBool();
}

void refuse_bool_subtraction(bool self_is_bool, bool other_is_bool) {
  TORCH_CHECK(!self_is_bool || !other_is_bool,
              "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` "
              "or `logical_xor()` operator instead.");
  TORCH_CHECK(!self_is_bool && !other_is_bool,
              "Subtraction, the `-` operator, with a bool tensor is not supported. If you are "
              "trying to invert a mask, use the `~` or `logical_not()` operator instead.");
}

const Rules elementwise_rules([](Registry& r) {
  for (const char* name : {"aten::add.Tensor", "aten::add.Scalar"}) {
    r.add(name, with_alpha<hlo::add>);
  }
  for (const char* name : {"aten::sub.Tensor", "aten::sub.Scalar"}) {
    r.add(name, with_alpha<hlo::sub>);
  }
  for (const char* name : {"aten::rsub.Tensor", "aten::rsub.Scalar"}) r.add(name, rsub);
  for (const char* name : {"aten::mul.Tensor", "aten::mul.Scalar"}) {
    r.add(name, binary_rule<hlo::mul, Steps::One>);
  }
  for (const char* name : {"aten::div.Tensor", "aten::div.Scalar"}) {
    r.add(name, binary_rule<hlo::div, Steps::One>);
  }
  for (const char* name : {"aten::div.Tensor_mode", "aten::div.Scalar_mode"}) {
    r.add(name, divide_mode);
  }
  for (const char* name : {"aten::floor_divide", "aten::floor_divide.Scalar"}) {
    r.add(name, whole_quotient<divide_floor>);
  }
  for (const char* name :
       {"aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor"}) {
    r.add(name, binary_rule<remainder_floor>);
  }
  for (const char* name : {"aten::fmod.Tensor", "aten::fmod.Scalar"}) {
    r.add(name, binary_rule<hlo::rem>);
  }
  r.add("aten::addcmul", addcmul);
  r.add("aten::addcdiv", addcdiv);
  for (const char* name : {"aten::lerp.Tensor", "aten::lerp.Scalar"}) r.add(name, lerp);

  r.add("aten::pow.Tensor_Tensor", binary_rule<power>);
  r.add("aten::pow.Scalar", binary_rule<power>);
  r.add("aten::pow.Tensor_Scalar", power_of_number).static_numbers = {1};

  r.add("aten::maximum", binary_rule<hlo::max, Steps::One>);
  r.add("aten::minimum", binary_rule<hlo::min, Steps::One>);
  r.add("aten::fmax", binary_rule<ignoring_nan<hlo::max>>);
  r.add("aten::fmin", binary_rule<ignoring_nan<hlo::min>>);
  for (const char* name : {"aten::clamp", "aten::clamp.Tensor", "aten::hardtanh"}) {
    r.add(name, clamp);
  }
  for (const char* name : {"aten::clamp_min", "aten::clamp_min.Tensor"}) r.add(name, clamp_min);
  for (const char* name : {"aten::clamp_max", "aten::clamp_max.Tensor"}) r.add(name, clamp_max);

  r.add("aten::atan2", binary_rule<hlo::atan2>);
  r.add("aten::hypot", binary_rule<hypot>);
  for (const char* name : {"aten::copysign.Tensor", "aten::copysign.Scalar"}) {
    r.add(name, binary_rule<copysign>);
  }
  r.add("aten::nextafter", nextafter);
  r.add("aten::logaddexp", binary_rule<log_add>);
  r.add("aten::logaddexp2", binary_rule<logaddexp2>);
  r.add("aten::heaviside", binary_rule<heaviside>);
  r.add("aten::gcd", binary_rule<gcd>);
  r.add("aten::lcm", binary_rule<lcm>);

  r.all("aten::floor_divide") = {.meta = floor_divide_meta, .suspects_values = by_zero};
  for (const char* name : {"aten::div.Tensor_mode", "aten::div.Scalar_mode"}) {
    r.one(name).suspects_values = by_zero;
  }
  for (const char* name : {"aten::remainder", "aten::fmod"}) r.all(name).suspects_values = by_zero;
  r.all("aten::rsub") = {.checks_numbers = reversed_subtraction,
                         .narrow_floats = NarrowFloats::Exact};
  for (const char* name :
       {"aten::add", "aten::sub", "aten::clamp", "aten::clamp_min", "aten::clamp_max"}) {
    r.all(name).narrow_floats = NarrowFloats::Exact;
  }
  r.all("aten::hardtanh") = {.meta = floats_like_first, .narrow_floats = NarrowFloats::Exact};
});

}  // namespace torch_xla::ops
