// Special functions: error functions, gamma and its derivatives, zeta, Bessel, entropy.
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include <ATen/ops/empty_like.h>

#include "ops/elementwise.h"
#include "ops/meta.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Value erfinv(const Value& x) { return hlo::chlo_unary("erf_inv", x); }
Value lgamma(const Value& x) { return hlo::chlo_unary("lgamma", x); }
// CHLO has nan at every pole; at 0 PyTorch keeps the sign.
Value digamma(const Value& x) {
  return hlo::select(hlo::equal(x, 0), -1.0 / x, hlo::chlo_unary("digamma", x));
}

// Hurwitz's zeta. CHLO's is exact for q >= 1 only: the terms before are added one by one, as
// PyTorch does it. Those of negative q cancel, which its CPU kernel does in double.
Value zeta(const Lowering& l, const Value& exponent, const Value& shift) {
  const DType dtype = shift.dtype(), wide = l.target().is_cpu() ? DType::F64 : dtype;
  const Value x = hlo::convert(exponent, wide), q = hlo::convert(shift, wide);
  const Value from_pole = hlo::less_equal(q, 0) & hlo::equal(q, hlo::floor(q));
  const auto before = [&](const Value& at) { return hlo::less(at, 1) & ~from_pole; };
  const Value start[] = {hlo::like(q, 0), q};
  const Values terms = hlo::while_loop(
      start,
      [&](std::span<const Value> v) {
        const std::vector<int64_t> dims = all_dims(q.rank());
        return hlo::reduce(before(v[1]), hlo::scalar_int(q.builder(), 0, DType::Pred), dims,
                           hlo::logical_or);
      },
      [&](std::span<const Value> v) {
        const Value here = before(v[1]);
        return Values{hlo::select(here, v[0] + hlo::pow(v[1], -x), v[0]),
                      hlo::select(here, v[1] + 1, v[1])};
      });
  const Value from = hlo::select(from_pole, 1, terms[1]);
  Value rest = hlo::chlo_binary("zeta", x, from);
  // CHLO loses the rest for huge exponents: the first term, and beside earlier ones nothing.
  const Value lost = hlo::is_nan(rest) & hlo::greater(x, 1);
  rest = hlo::select(lost & hlo::equal(from, 1), 1, hlo::select(lost & hlo::less(q, 1), 0, rest));
  const Value sum = terms[0] + rest;
  const Value undefined = hlo::less_equal(q, 0) & hlo::not_equal(x, hlo::floor(x));
  const Value value =
      hlo::select(from_pole, hlo::select(hlo::less(x, 1), kNan, hlo::like(q, kInfinity)),
                  hlo::select(undefined, kNan, sum));
  return hlo::convert(value, dtype);
}

Values special_zeta(Lowering& l) {
  const DType compute = compute_dtype(l.out().dtype);
  return result(l, zeta(l, operand(l, 0, compute), operand(l, 1, compute)));
}

Values polygamma(Lowering& l) {
  const Value x = cast(l.in(1), compute_dtype(l.out().dtype));
  const int64_t n = l.integer(0);
  if (n == 0) return result(l, digamma(x));
  // (-1)^(n+1) n! zeta(n + 1, x). The first derivative has a simple reflection.
  const double factor = (n % 2 == 0 ? -1 : 1) * std::tgamma(static_cast<double>(n) + 1);
  const auto of = [&](const Value& at) {
    return zeta(l, hlo::like(at, static_cast<double>(n) + 1), at) * factor;
  };
  if (n != 1) return result(l, of(x));
  const Value negative = hlo::less(x, 0);
  const Value positive = of(hlo::select(negative, 1.0 - x, x));
  // At poles PyTorch's rounding leaves large numbers, and so does this.
  const Value ratio = std::numbers::pi / hlo::sin(x * std::numbers::pi);
  return result(l, hlo::select(negative, ratio * ratio - positive, positive));
}

// x * log(y), 0 where x is 0, nan where y is.
template <UnaryFormula logarithm>
Value x_times_log(const Value& x, const Value& y) {
  const Value product = hlo::select(hlo::equal(x, 0), 0.0, x * logarithm(y));
  return hlo::select(hlo::is_nan(y), kNan, product);
}

Value entropy(const Value& x) {
  const Value inside = hlo::select(hlo::equal(x, 0), 0.0, -x * hlo::log(x));
  return hlo::select(hlo::less(x, 0), -kInfinity, inside);
}

// --- sums of Chebyshev polynomials -------------------------------------------------------------
// The coefficients interpolate each function at Chebyshev points, to about 1e-14.

// i0e(x) on [0, 8], at u = x/4 - 1.
constexpr std::array kI0eSmall = {
    0.33839763720473798,     -0.3046826723431984,     0.17162090152220871,
    -0.094901097048047584,   0.049305284239670594,    -0.023737414805899394,
    0.010546460394594859,    -0.0043243099950504363,  0.0016394756169410083,
    -0.00057637557453825991, 0.00018850288509531172,  -5.7541950100386688e-05,
    1.6448448070051408e-05,  -4.416738357916873e-06,  1.1173875383368798e-06,
    -2.6707938466066476e-07, 6.0469949129280546e-08,  -1.3000249279602769e-08,
    2.6598226514332344e-09,  -5.1897880231982289e-10, 9.6757176345126553e-11,
    -1.7267607097279678e-11, 2.9542294536592331e-12,  -4.8506877527011564e-13,
    7.6101676400926236e-14,  -1.1133069774713375e-14, 9.8943487148306767e-16};
// sqrt(x) * i0e(x) on [8, inf), at u = 16/x - 1.
constexpr std::array kI0eLarge = {
    0.40224520550705445,     0.0033691164782556626,   6.8897583469133171e-05,
    2.8913705208440185e-06,  2.0489185895291116e-07,  2.2666689905143382e-08,
    3.3962320295247882e-09,  4.9406024008777801e-10,  1.18892644267688e-11,
    -3.1499154162199711e-11, -1.3215668325765244e-11, -1.7941817622245611e-12,
    7.1807472249032028e-13,  3.8528391003916043e-13,  1.5659987926291682e-14,
    -4.1504811283749934e-14, -9.2995786510049289e-15, 3.7659933651100702e-15,
    2.2248285085580441e-15};
// i1e(x) / x on [0, 8], at u = x/4 - 1.
constexpr std::array kI1eSmall = {
    0.1262935932218168,      -0.17641651835783401,    0.10264365868984705,
    -0.052945981208094933,   0.024726449030626454,    -0.010564084894626133,
    0.0041564229443128058,   -0.0015135724506311458,  0.00051228595616842874,
    -0.00016176081582570319, 4.7815651075264484e-05,  -1.3273163655775392e-05,
    3.4702513078298866e-06,  -8.5687202615057372e-07, 2.0032947497389264e-07,
    -4.4450590879393147e-08, 9.3815369009842412e-09,  -1.8872492991919432e-09,
    3.625585494833954e-10,   -6.663447137816858e-11,  1.1735773232842325e-11,
    -1.9836147899140909e-12, 3.2203046813534726e-13,  -5.0110507307418625e-14,
    7.3121164473127564e-15,  -8.2258017270115038e-16, -1.6987440261046955e-16};
// sqrt(x) * i1e(x) on [8, inf), at u = 16/x - 1.
constexpr std::array kI1eLarge = {
    0.38928811750914005,     -0.0097610974913614774,  -0.00011058893876265452,
    -3.8825648088827863e-06, -2.5122362381034764e-07, -2.6314688463345777e-08,
    -3.8353803831711459e-09, -5.5897435948920901e-10, -1.897486261682209e-11,
    3.2526016967512751e-11,  1.4125905123980949e-11,  2.035637740243302e-12,
    -7.1979995063779704e-13, -4.083612103437866e-13,  -2.0772857118644377e-14,
    4.2702683494529707e-14,  1.072533874578671e-14,   -3.8039746791104048e-15,
    -2.0378435780948596e-15};
// erfcx(x) / (1 - u) on [0, inf), at u = (x - 3) / (x + 3).
constexpr std::array kErfcx = {
    0.23557303733014537,     -0.18857947484578291,    0.059018016723747735,
    -0.014181173349847573,   0.0024358788788027656,   -0.00022992619393823738,
    -1.0715111190632851e-05, 6.5072368496911284e-06,  -4.4046417919376147e-07,
    -1.373240023898835e-07,  2.2079959441856851e-08,  3.1992042227565592e-09,
    -8.384179029788652e-10,  -9.7366787400493719e-11, 3.1237226307499244e-11,
    4.0622696509249479e-12,  -1.1651869521007983e-12, -2.0948492545715714e-13,
    4.0768799596663309e-14,  1.1870433600411344e-14,  -1.5561842842152909e-15};

// Clenshaw's recurrence.
Value chebyshev(const Value& u, std::span<const double> coefficients) {
  const Value twice = u * 2;
  Value next = hlo::like(u, 0);
  Value sum = hlo::like(u, coefficients.back());
  for (size_t i = coefficients.size() - 1; i-- > 1;) {
    const Value previous = sum;
    sum = twice * sum - next + coefficients[i];
    next = previous;
  }
  return u * sum - next + coefficients[0];
}

Value bessel_scaled(const Value& size, std::span<const double> small, std::span<const double> large,
                    bool odd) {
  Value near = chebyshev(size / 4 - 1, small);
  if (odd) near = near * size;
  const Value far_size = hlo::max(size, hlo::like(size, 8));
  const Value far = chebyshev(16.0 / far_size - 1, large) * hlo::rsqrt(far_size);
  return hlo::select(hlo::is_nan(size), size, hlo::select(hlo::less_equal(size, 8), near, far));
}

Value i0e(const Value& x) { return bessel_scaled(hlo::abs(x), kI0eSmall, kI0eLarge, false); }
Value i0(const Value& x) { return i0e(x) * hlo::exp(hlo::abs(x)); }
Value i1e(const Value& x) {
  const Value size = bessel_scaled(hlo::abs(x), kI1eSmall, kI1eLarge, true);
  return hlo::select(hlo::less(x, 0), -size, size);
}
Value i1(const Value& x) { return i1e(x) * hlo::exp(hlo::abs(x)); }

// exp(x^2) * erfc(x), by reflection for negative x.
Value erfcx(const Value& x) {
  const Value size = hlo::abs(x);
  const Value one_minus_u = 6.0 / (size + 3);
  const Value right = chebyshev(1.0 - one_minus_u, kErfcx) * one_minus_u;
  return hlo::select(hlo::less(x, 0), 2.0 * hlo::exp(x * x) - right, right);
}

Value log_ndtr(const Value& x) {
  const Value t = x * (1 / std::numbers::sqrt2);
  const Value tail = hlo::log(erfcx(-t) * 0.5) - t * t;
  return hlo::select(hlo::less(x, -1), tail, hlo::log1p(hlo::erfc(t) * -0.5));
}

// x = mantissa * 2^exponent with the mantissa in [0.5, 1), read from the bits.
Values frexp(Lowering& l) {
  const Value given = cast(l.in(0), compute_dtype(l.out().dtype));
  const bool is_double = given.dtype() == DType::F64;
  const int mantissa_bits = is_double ? 52 : 23;
  const int bias = is_double ? 1022 : 126;
  const DType bits_dtype = is_double ? DType::S64 : DType::S32;
  // Subnormal numbers are scaled up first.
  const double scale = std::ldexp(1.0, mantissa_bits + 2);
  const Value tiny = hlo::less(hlo::abs(given), std::ldexp(1.0, 1 - bias));
  const Value x = hlo::select(tiny, given * scale, given);

  const hlo::Type bits_type = x.type().with(bits_dtype);
  const Value bits = hlo::bitcast_convert(x, bits_type);
  const auto constant = [&](int64_t v) { return hlo::splat_int(l.b, v, bits_type); };
  const int64_t exponent_mask = (int64_t{1} << (is_double ? 11 : 8)) - 1;
  const Value field = hlo::logical_and(
      hlo::binary("shift_right_logical", bits, constant(mantissa_bits)), constant(exponent_mask));
  const Value kept = hlo::logical_and(bits, constant(~(exponent_mask << mantissa_bits)));
  const Value mantissa = hlo::bitcast_convert(
      hlo::logical_or(kept, constant(static_cast<int64_t>(bias) << mantissa_bits)), x.type());
  const Value shift = hlo::select(tiny, constant(bias + mantissa_bits + 2), constant(bias));

  const Value plain = hlo::equal(given, 0) | ~hlo::is_finite(given);
  return {as_result(l, hlo::select(plain, given, mantissa), 0),
          as_result(l, hlo::select(plain, constant(0), hlo::sub(field, shift)), 1)};
}

// --- the normal distribution's quantiles -------------------------------------------------------

// a[0] x^(n-1) + a[1] x^(n-2) + ..; where `monic`, x^n before it.
template <size_t N>
Value polynomial(const Value& x, const std::array<double, N>& a, bool monic = false) {
  Value sum = monic ? x + a[0] : hlo::like(x, a[0]);
  for (size_t i = 1; i < N; ++i) sum = sum * x + a[i];
  return sum;
}

// The quotients of polynomials of the Cephes library's ndtri (Moshier): about 1/2 in the square of
// the distance, towards the ends in 1 / sqrt(-2 log p).
Value ndtri(const Value& p) {
  constexpr std::array kMiddle = {-5.99633501014107895267e1, 9.80010754185999661536e1,
                                  -5.66762857469070293439e1, 1.39312609387279679503e1,
                                  -1.23916583867381258016e0};
  constexpr std::array kUnderMiddle = {1.95448858338141759834e0, 4.67627912898881538453e0,
                                       8.63602421390890590575e1, -2.25462687854119370527e2,
                                       2.00260212380060660359e2, -8.20372256168333339912e1,
                                       1.59056225126211695515e1, -1.18331621121330003142e0};
  constexpr std::array kNear = {
      4.05544892305962419923e0,   3.15251094599893866154e1,   5.71628192246421288162e1,
      4.40805073893200834700e1,   1.46849561928858024014e1,   2.18663306850790267539e0,
      -1.40256079171354495875e-1, -3.50424626827848203418e-2, -8.57456785154685413611e-4};
  constexpr std::array kUnderNear = {1.57799883256466749731e1,   4.53907635128879210584e1,
                                     4.13172038254672030440e1,   1.50425385692907503408e1,
                                     2.50464946208309415979e0,   -1.42182922854787788574e-1,
                                     -3.80806407691578277194e-2, -9.33259480895457427372e-4};
  constexpr std::array kFar = {
      3.23774891776946035970e0,  6.91522889068984211695e0,  3.93881025292474443415e0,
      1.33303460815807542389e0,  2.01485389549179081538e-1, 1.23716634817820021358e-2,
      3.01581553508235416007e-4, 2.65806974686737550832e-6, 6.23974539184983293730e-9};
  constexpr std::array kUnderFar = {6.02427039364742014255e0,  3.67983563856160859403e0,
                                    1.37702099489081330271e0,  2.16236993594496635890e-1,
                                    1.34204006088543189037e-2, 3.28014464682127739104e-4,
                                    2.89247864745380683936e-6, 6.79019408009981274425e-9};
  const double low = std::exp(-2.0);
  const Value upper = hlo::greater(p, 1 - low);
  const Value y = hlo::select(upper, 1.0 - p, p);

  const Value distance = y - 0.5, square = distance * distance;
  const Value quotient = polynomial(square, kMiddle) / polynomial(square, kUnderMiddle, true);
  const Value middle =
      (distance + distance * (square * quotient)) * std::sqrt(2 * std::numbers::pi);

  const Value x = hlo::sqrt(-2.0 * hlo::log(y)), z = 1.0 / x;
  const Value near = z * polynomial(z, kNear) / polynomial(z, kUnderNear, true);
  const Value far = z * polynomial(z, kFar) / polynomial(z, kUnderFar, true);
  const Value end = x - hlo::log(x) / x - hlo::select(hlo::less(x, 8), near, far);

  const Value inside = hlo::select(hlo::greater(y, low), middle, hlo::select(upper, end, -end));
  const Value at_ends =
      hlo::select(hlo::equal(p, 0), -kInfinity, hlo::select(hlo::equal(p, 1), kInfinity, inside));
  return hlo::select(hlo::less(p, 0) | hlo::greater(p, 1), kNan, at_ends);
}

void frexp_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  if (!x.is_floating_point()) return call.pytorch();
  call.results({at::empty_like(x), at::empty_like(x, x.options().dtype(at::kInt))});
}

}  // namespace

// Composite operators recorded whole on purpose: the Scalar overloads of xlogy, special_xlog1py
// and special_zeta, whose composites copy a number to the device.
// Without a rule, and so on the host: igamma, igammac, the Bessel functions of the
// first and second kind, the modified ones under special_modified_*, and the orthogonal
// polynomials.
const Rules elementwise_special_rules([](Registry& r) {
  const auto add = [&r](std::initializer_list<const char*> names, RuleFunction rule) {
    for (const char* name : names) r.add(name, rule);
  };
  r.add("aten::erf", unary_rule<hlo::erf, Steps::Many>);
  r.add("aten::erfc", unary_rule<hlo::erfc, Steps::Many>);
  r.add("aten::erfinv", unary_rule<erfinv, Steps::Many>);
  r.add("aten::special_erfcx", unary_rule<erfcx, Steps::Many>);
  r.add("aten::special_log_ndtr", unary_rule<log_ndtr, Steps::Many>);
  r.add("aten::lgamma", unary_rule<lgamma, Steps::Many>);
  r.add("aten::digamma", unary_rule<digamma, Steps::Many>);
  r.add("aten::polygamma", polygamma);
  add({"aten::special_zeta", "aten::special_zeta.self_scalar", "aten::special_zeta.other_scalar"},
      special_zeta);
  add({"aten::xlogy.Tensor", "aten::xlogy.Scalar_Self", "aten::xlogy.Scalar_Other"},
      binary_rule<x_times_log<hlo::log>>);
  add({"aten::special_xlog1py", "aten::special_xlog1py.self_scalar",
       "aten::special_xlog1py.other_scalar"},
      binary_rule<x_times_log<hlo::log1p>>);
  r.add("aten::special_entr", unary_rule<entropy, Steps::Many>);
  r.add("aten::i0", unary_rule<i0, Steps::Many>);
  r.add("aten::special_i0e", unary_rule<i0e, Steps::Many>);
  r.add("aten::special_i1", unary_rule<i1, Steps::Many>);
  r.add("aten::special_i1e", unary_rule<i1e, Steps::Many>);
  r.add("aten::frexp.Tensor", frexp);
  r.all("aten::frexp").meta = frexp_meta;
  r.add("aten::special_ndtri", unary_rule<ndtri, Steps::Many>);
});

}  // namespace torch_xla::ops
