// Random operators: sampling in place, random factories, dropout, permutations, multinomial.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include <ATen/EmptyTensor.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/random_cpu_dispatch.h>
#include <ATen/ops/uniform_cpu_dispatch.h>
#include <c10/core/DefaultDtype.h>

#include "ops/common.h"
#include "ops/host_rules.h"
#include "ops/meta.h"
#include "ops/random_draw.h"
#include "ops/rules.h"
#include "ops/value_checks.h"
#include "util/error.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Type;
using hlo::Value;
using hlo::Values;

using Draw = Value (*)(const Value& seed, const Type& type, int stream);

// f64 for doubles, f32 for everything else.
DType draw_dtype(DType result) {
  const DType real = hlo::real_part(result);
  return real == DType::F64 ? DType::F64 : DType::F32;
}

// One draw per element of result `i`; complex results get two.
Value draw_result(const Lowering& l, Draw draw, size_t i = 0) {
  const Type type = l.out(i).with(draw_dtype(l.out(i).dtype));
  const Value real = draw(l.seed(), type, 0);
  return hlo::is_complex(l.out(i).dtype) ? hlo::complex(real, draw(l.seed(), type, 2)) : real;
}

Value number_for(const Lowering& l, size_t arg, const Value& x) {
  return hlo::broadcast_to(l.number(arg, x.dtype()), x.dims());
}

// The bound is excluded, also after rounding: what reached it becomes the dtype's next lower
// number.
Value keep_below(const Value& x, const Value& bound) {
  const Value infinity = hlo::lowest(bound.builder(), bound.type());
  const Value previous = hlo::chlo_binary("next_after", bound, infinity);
  return hlo::select(hlo::less(x, hlo::broadcast_to(bound, x.dims())), x,
                     hlo::broadcast_to(previous, x.dims()));
}

// --- continuous distributions --------------------------------------------------------------

Values uniform(Lowering& l) {
  const DType dtype = l.out().dtype;
  const Value u = draw_result(l, draw::uniform);
  const Value from = number_for(l, 1, u);
  const Value to = number_for(l, 2, u);
  const Value x = cast(from + u * (to - from), dtype);
  if (hlo::is_complex(dtype)) return {x};
  const Value low = l.number(1, dtype), high = l.number(2, dtype);
  // from == to has one value only.
  const Value bounded = keep_below(x, high);
  return {hlo::select(hlo::broadcast_to(hlo::less(low, high), x.dims()), bounded, x)};
}

// rand, rand_like: the dtype's own [0, 1).
Values unit_uniform(Lowering& l) {
  const DType dtype = l.out().dtype;
  TXLA_CHECK(hlo::is_float(dtype) || hlo::is_complex(dtype),
             "rand: expected a floating-point or complex dtype.");
  const Value x = cast(draw_result(l, draw::uniform), dtype);
  if (hlo::is_complex(dtype) || hlo::bit_width(dtype) >= 32) return {x};
  return {keep_below(x, hlo::scalar(l.b, 1, dtype))};
}

// Mean 0, deviation 1; of a complex number, over both parts.
Value standard_normal(const Lowering& l) {
  const Value z = draw_result(l, draw::normal);
  return hlo::is_complex(z.dtype()) ? z * std::sqrt(0.5) : z;
}
Values unit_normal(Lowering& l) { return result(l, standard_normal(l)); }

// normal_(mean, std) and its relatives, whose two parameters are numbers or tensors.
template <size_t Mean, size_t Deviation>
Values normal(Lowering& l) {
  const Value z = standard_normal(l);
  const Value mean = l.in(Mean, z.dtype(), z.dims());
  return result(l, mean + l.in(Deviation, z.dtype(), z.dims()) * z);
}
template <size_t Mean, size_t Deviation>
Values normal_numbers(Lowering& l) {
  const Value z = standard_normal(l);
  return result(l, number_for(l, Mean, z) + number_for(l, Deviation, z) * z);
}
Values normal_tensor_float(Lowering& l) {
  const Value z = standard_normal(l);
  return result(l, l.in(0, z.dtype(), z.dims()) + number_for(l, 1, z) * z);
}
Values normal_float_tensor(Lowering& l) {
  const Value z = standard_normal(l);
  return result(l, number_for(l, 0, z) + l.in(1, z.dtype(), z.dims()) * z);
}

Values log_normal(Lowering& l) {
  const Value z = draw_result(l, draw::normal);
  return result(l, hlo::exp(number_for(l, 1, z) + number_for(l, 2, z) * z));
}
Values exponential(Lowering& l) {
  const Value x = draw_result(l, draw::exponential);
  return result(l, x / number_for(l, 1, x));
}
Values cauchy(Lowering& l) {
  const Value x = draw_result(l, draw::cauchy);
  return result(l, number_for(l, 1, x) + number_for(l, 2, x) * x);
}
// The number of trials up to the first success: 1, 2, ...
Values geometric(Lowering& l) {
  const Value u = draw_result(l, draw::positive_uniform);
  const Value trials = hlo::ceil(hlo::log(u) / hlo::log1p(-number_for(l, 1, u)));
  return result(l, hlo::max(trials, hlo::like(trials, 1)));
}

// --- integers ------------------------------------------------------------------------------

// The largest integer that random_() gives: every value of an integer dtype, and as far as a float
// dtype is exact.
int64_t largest_integer(DType dtype) {
  switch (dtype) {
    case DType::Pred:
      return 1;
    case DType::BF16:
      return int64_t{1} << 8;
    case DType::F16:
      return int64_t{1} << 11;
    case DType::F32:
      return int64_t{1} << 24;
    case DType::F64:
      return int64_t{1} << 53;
    default:
      break;
  }
  const int unused =
      64 - static_cast<int>(hlo::bit_width(dtype)) + (hlo::is_unsigned(dtype) ? 0 : 1);
  const uint64_t largest = ~uint64_t{0} >> unused;
  return static_cast<int64_t>(std::min<uint64_t>(largest, std::numeric_limits<int64_t>::max()));
}

// The integers that a float dtype tells apart at x.
struct Exact {
  int64_t nearest, step;
};
Exact exact_at(DType dtype, int64_t x) {
  const int digits = std::bit_width(static_cast<uint64_t>(largest_integer(dtype))) - 1;
  const uint64_t magnitude = x < 0 ? -static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
  const int excess = std::max(static_cast<int>(std::bit_width(magnitude)) - digits, 0);
  if (excess == 0) return {x, 1};
  const uint64_t below = magnitude >> excess, rest = magnitude - (below << excess);
  const uint64_t half = uint64_t{1} << (excess - 1);
  const uint64_t nearest = below + (rest > half || (rest == half && below % 2 == 1));
  const auto rounded = static_cast<int64_t>(nearest << excess);
  return {x < 0 ? -rounded : rounded, int64_t{1} << excess};
}

// Integers from `low` to `last`, both included, also when they are rounded to the result's dtype:
// a range shrinks to the next numbers that a float tells apart (PyTorch's update_from, update_to).
Values integers(Lowering& l, int64_t low, int64_t last) {
  const Type type = l.out();
  if (hlo::is_float(type.dtype)) {
    const Exact first = exact_at(type.dtype, low + 1), end = exact_at(type.dtype, last);
    if (first.nearest < low) low = first.nearest + first.step;
    if (end.nearest > last) last = end.nearest - end.step - 1;
  }
  const uint64_t range = static_cast<uint64_t>(last) - static_cast<uint64_t>(low) + 1;
  Value x = draw::integers(l.seed(), type.dims, range);
  if (low != 0) x = x + hlo::splat_int(l.b, low, x.type());
  return result(l, x);
}

Values random(Lowering& l) { return integers(l, 0, largest_integer(l.out().dtype)); }
Values random_from(Lowering& l) {
  const int64_t last = l.has(2) ? l.integer(2) - 1 : largest_integer(l.out().dtype);
  return integers(l, l.integer(1), last);
}
// [0, high) and [low, high), by the schema positions of the bounds.
template <size_t High>
Values integers_below(Lowering& l) {
  return integers(l, 0, l.integer(High) - 1);
}
template <size_t Low>
Values integers_between(Lowering& l) {
  return integers(l, l.integer(Low), l.integer(Low + 1) - 1);
}

// Positions sorted by 64-bit random keys.
Values randperm(Lowering& l) {
  const Type type = l.out();
  const DType payload =
      type.elements() > std::numeric_limits<int32_t>::max() ? DType::S64 : DType::S32;
  const std::array<Value, 2> operands = {draw::word64(l.seed(), type.dims),
                                         hlo::iota(l.b, type.with(payload), 0)};
  const Values sorted = hlo::sort(
      operands, 0, false, [](std::span<const Value> args) { return hlo::less(args[0], args[1]); });
  return result(l, sorted[1]);
}

// --- events --------------------------------------------------------------------------------

// A tensor of probabilities against one uniform number for each element.
Value bernoulli_of(const Lowering& l, const Value& probabilities) {
  const DType dtype = draw_dtype(probabilities.dtype());
  const Value p = hlo::broadcast_to(cast(probabilities, dtype), l.out().dims);
  return hlo::less(draw::uniform(l.seed(), p.type(), 0), p);
}
Values bernoulli(Lowering& l) { return result(l, bernoulli_of(l, l.in(0))); }
Values bernoulli_tensor(Lowering& l) { return result(l, bernoulli_of(l, l.in(1))); }
Values bernoulli_number(Lowering& l) {
  return result(l, draw::bernoulli(l.seed(), l.out().dims, l.number(1, DType::F64)));
}

// Input times mask times scale as the first result, with the scale rounded as PyTorch rounds it.
Value masked_scale(const Lowering& l, const Value& mask, const Value& scale) {
  const DType compute = compute_dtype(l.out().dtype);
  const Value wide = l.in(0, compute, l.out().dims) * cast(mask, compute);
  return as_result(l, wide * hlo::broadcast_to(hlo::convert(scale, compute), wide.dims()));
}

// The elements that dropout keeps. XLA:CPU fuses what an element costs little into all that use it,
// and again into what uses that: a training step of a BERT of 4 layers drew its 9 masks 414 times.
// It does not look into branches.
Value drawn_once(Lowering& l, const Value& some_go, const Type& type, const Value& keep) {
  const auto draw = [&] { return Values{draw::bernoulli(l.seed(), type.dims, keep)}; };
  if (!l.target().is_cpu()) return draw()[0];
  const std::array<Type, 1> types = {type.with(DType::Pred)};
  return hlo::conditional(some_go, types, draw, [&] { return Values{hlo::one(l.b, types[0])}; })[0];
}

Values native_dropout(Lowering& l) {
  const Value x = l.in(0);
  const Type mask_type = l.out(1);
  if (l.has(2) && !l.flag(2)) return {as_result(l, x), hlo::one(l.b, mask_type)};
  const Value keep = 1.0 - l.number(1, DType::F64);
  const Value mask = drawn_once(l, hlo::less(keep, 1), mask_type, keep);
  const Value scale = hlo::select(hlo::equal(keep, 0), hlo::like(keep, 0), 1.0 / keep);
  return {masked_scale(l, mask, scale), as_result(l, mask, 1)};
}
Values native_dropout_backward(Lowering& l) {
  const Value mask = l.in(1, l.in(1).dtype(), l.out().dims);
  return {masked_scale(l, mask, l.number(2, DType::F64))};
}
// CUDA's form: `p` is the probability to keep.
Values fused_dropout(Lowering& l) {
  const Value keep = l.number(1, DType::F64);
  const Value mask = draw::bernoulli(l.seed(), l.out(1).dims, keep);
  return {masked_scale(l, mask, 1.0 / keep), as_result(l, mask, 1)};
}

// A number of events for each rate. Small rates count exponential distances until they pass the
// rate; others take a transformed rejection (PTRS of Hoermann, The transformed rejection method for
// generating Poisson random variables, 1993).
Values poisson(Lowering& l) {
  const DType dtype = draw_dtype(l.in(0).dtype());
  const Value given = cast(l.in(0), dtype);
  const Value small = hlo::less(given, 10), finite = hlo::is_finite(given);
  const Value rate = hlo::select(small | ~finite, 10.0, given);
  const Value few = hlo::select(small & hlo::greater(given, 0), given, 0.0);
  const Value b = hlo::sqrt(rate) * 2.53 + 0.931, a = b * 0.02483 - 0.059;
  const Value inverse_alpha = 1.1328 / (b - 3.4) + 1.1239, accepted = 0.9277 - 3.6224 / (b - 2);
  const Value log_rate = hlo::log(rate);

  // The state: a seed; whether elements are drawn; and their numbers; the way that distances went.
  const Value none = hlo::like(rate, 0);
  const Value start[] = {l.seed(), ~finite, none, none};
  const Values drawn = hlo::while_loop(
      start,
      [&](std::span<const Value> v) {
        const Value waits = ~v[1];
        return hlo::reduce(waits, hlo::scalar_int(l.b, 0, DType::Pred), all_dims(waits.rank()),
                           hlo::logical_or);
      },
      [&](std::span<const Value> v) {
        const Value way = v[3] + draw::exponential(v[0], rate.type(), 2);
        const Value passed = hlo::greater(way, few);

        const Value u = draw::uniform(v[0], rate.type(), 0) - 0.5;
        const Value w = draw::positive_uniform(v[0], rate.type(), 1);
        const Value distance = 0.5 - hlo::abs(u);
        const Value k = hlo::floor((a * 2 / distance + b) * u + rate + 0.43);
        const Value quick = hlo::greater_equal(distance, 0.07) & hlo::less_equal(w, accepted);
        const Value out =
            hlo::less(k, 0) | (hlo::less(distance, 0.013) & hlo::greater(w, distance));
        const Value density = k * log_rate - rate - hlo::chlo_unary("lgamma", k + 1);
        const Value taken =
            hlo::less_equal(hlo::log(w * inverse_alpha / (a / (distance * distance) + b)), density);
        const Value fits = quick | (~out & taken);

        const Value count = hlo::select(small, v[2] + 1, k);
        const Value done = v[1] | hlo::select(small, passed, fits);
        const Value keeps = v[1] | (small & passed);
        return Values{v[0] + hlo::scalar_int(l.b, 1, v[0].dtype()), done,
                      hlo::select(keeps, v[2], count), way};
      });
  return result(l, hlo::select(finite, drawn[2], given));
}

// (self, generator)
bool are_no_rates(const KnownArguments& a) {
  return exceeds(a, a[0], 0, std::numeric_limits<double>::infinity());
}

// Leaky ReLU with a random slope for each negative element; the slopes are a second result.
Values rrelu_with_noise(Lowering& l) {
  const Value x = cast(l.in(0), compute_dtype(l.in(0).dtype()));
  const Value lower = number_like(l, 2, x), upper = number_like(l, 3, x);
  if (!l.flag(4)) {
    const Value slope = (lower + upper) * 0.5;
    return {as_result(l, hlo::select(hlo::greater(x, 0), x, x * slope)), l.in(1)};
  }
  const Value u = cast(draw_result(l, draw::uniform), x.dtype());
  const Value negative = hlo::less_equal(x, 0);
  const Value noise = hlo::select(negative, lower + u * (upper - lower), 1.0);
  return {as_result(l, x * noise), as_result(l, noise, 1)};
}

// --- multinomial ---------------------------------------------------------------------------

// Running sums along the last dimension, in log2(n) passes.
Value running_sum(Value x) {
  const int64_t last = x.rank() - 1, n = x.dim(last);
  const Value zero = hlo::scalar(x.builder(), 0, x.dtype());
  const std::vector<int64_t> none(x.rank(), 0);
  for (int64_t step = 1; step < n; step *= 2) {
    std::vector<int64_t> low = none;
    low[last] = step;
    x = x + hlo::pad(hlo::slice_dim(x, last, 0, n - step), zero, low, none, none);
  }
  return x;
}

// The position of the largest element along the last dimension; the first of equals.
Value argmax_last(const Value& x) {
  const int64_t last = x.rank() - 1;
  hlo::Builder& b = x.builder();
  const std::array<int64_t, 1> dims = {last};
  const Value best = spread(reduce_max(x, dims), x.dims(), dims);
  const Value positions = hlo::iota(b, x.type().with(DType::S64), last);
  const Value none = hlo::splat_int(b, x.dim(last) - 1, positions.type());
  return reduce_min(hlo::select(hlo::equal(x, best), positions, none), dims);
}

// The k largest, descending, as positions.
Value top_positions(const Value& x, int64_t k) {
  const int64_t last = x.rank() - 1;
  hlo::Builder& b = x.builder();
  const std::array<Value, 2> operands = {x, hlo::iota(b, x.type().with(DType::S32), last)};
  const Values sorted = hlo::sort(operands, last, true, [](std::span<const Value> args) {
    return hlo::greater(args[0], args[1]);
  });
  return hlo::slice_dim(sorted[1], last, 0, k);
}

Values multinomial(Lowering& l) {
  const Value weights = cast(l.in(0), draw_dtype(l.in(0).dtype()));
  const int64_t samples = l.integer(1), last = weights.rank() - 1, n = weights.dim(last);
  const bool replacement = l.flag(2);
  if (samples == 1 || !replacement) {
    // Weights over exponential times: the order in which independent clocks ring.
    const Value rates = weights / draw::exponential(l.seed(), weights.type(), 0);
    if (samples == 1)
      return {hlo::reshape(hlo::convert(argmax_last(rates), l.out().dtype), l.out().dims)};
    return result(l, top_positions(rates, samples));
  }
  // The first category that can be drawn and whose running sum exceeds a share of the total.
  const Value sums = running_sum(weights);
  const Dims dims = l.out().dims;
  const Value u = draw::uniform(l.seed(), {weights.dtype(), dims}, 0);
  const Value share = u * hlo::broadcast_to(hlo::slice_dim(sums, last, n - 1, n), dims);
  Dims table = dims;
  table.push_back(n);
  const std::vector<int64_t> sample_dims = all_dims(weights.rank());
  std::vector<int64_t> category_dims = sample_dims;
  category_dims.back() += 1;
  const Value possible = hlo::greater(weights, 0);
  const Value positions = hlo::iota(l.b, weights.type().with(DType::S32), last);
  const Value never = hlo::splat_int(l.b, n, positions.type());
  const auto over_table = [&](const Value& x) {
    return hlo::broadcast_in_dim(x, table, category_dims);
  };
  const Value reached = hlo::greater(over_table(hlo::select(possible, sums, -1.0)),
                                     hlo::broadcast_in_dim(share, table, sample_dims));
  const std::array<int64_t, 1> category = {last + 1}, same = {last};
  const Value first =
      reduce_min(hlo::select(reached, over_table(positions), over_table(never)), category);
  // Rounding may carry the share to the total itself.
  const Value final = reduce_max(hlo::select(possible, positions, -never), same);
  return result(l, hlo::min(first, spread(final, dims, same)));
}

// --- Numbers that PyTorch's CPU kernels refuse ---------------------------------------------

double number(const Arguments& a, size_t position) { return a[position].toScalar().toDouble(); }

// PyTorch's CPU kernels check the range before they see that there is nothing to fill.
at::Tensor nothing_of(at::ScalarType dtype) {
  return at::detail::empty_cpu({0}, at::TensorOptions(dtype));
}
at::Tensor nothing_like(const c10::IValue& self) {
  return nothing_of(self.toTensor().scalar_type());
}

void check_uniform(const Arguments& a) {
  at::Tensor none = nothing_like(a[0]);
  at::cpu::uniform_(none, number(a, 1), number(a, 2));
}

// (self, to, ..)
void check_random_to(const Arguments& a) {
  at::Tensor none = nothing_like(a[0]);
  at::cpu::random_(none, a[1].toInt());
}

// (self, from, to, ..)
void check_random_from(const Arguments& a) {
  at::Tensor none = nothing_like(a[0]);
  at::cpu::random_(none, a[1].toInt(), a[2].toOptional<int64_t>());
}

// ([self,] [low,] high, .., dtype, ..)
template <bool HasLow, size_t High, size_t Dtype>
void check_randint(const Arguments& a) {
  const c10::IValue& given = a[Dtype];
  const c10::IValue& like = a[0];
  at::ScalarType dtype = at::kLong;
  if (!given.isNone()) {
    dtype = given.toScalarType();
  } else if (like.isTensor()) {
    dtype = like.toTensor().scalar_type();
  }
  at::Tensor none = nothing_of(dtype);
  at::cpu::random_(none, HasLow ? a[High - 1].toInt() : 0, a[High].toInt());
}

void check_cauchy(const Arguments& a) {
  const double sigma = number(a, 2);
  TORCH_CHECK(sigma > 0.0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
}

void check_exponential(const Arguments& a) {
  const double lambda = number(a, 1);
  TORCH_CHECK(lambda > 0.0, "exponential_ expects lambda > 0.0, but found lambda=", lambda);
}

void check_geometric(const Arguments& a) {
  const double p = number(a, 1);
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
}

void check_log_normal(const Arguments& a) {
  const double std = number(a, 2);
  TORCH_CHECK(std > 0.0, "log_normal_ expects std > 0.0, but found std=", std);
}

void check_deviation(double std) {
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
}
// (mean, std, ..)
void check_normal(const Arguments& a) { check_deviation(number(a, 1)); }
// (self, mean, std, ..)
void check_normal_of_self(const Arguments& a) { check_deviation(number(a, 2)); }

// (probabilities, num_samples, replacement, generator), and out
void check_multinomial(const Arguments& a) {
  const at::Tensor probabilities = a.tensor(0);
  const int64_t count = a[1].toInt();
  const bool replacement = a[2].toBool();
  if (a.size() > 4) {
    const at::ScalarType out = a.tensor(4).scalar_type();
    TORCH_CHECK(out == at::kLong, "multinomial expects Long tensor out, got: ", out);
  }
  TORCH_CHECK(probabilities.dim() == 1 || probabilities.dim() == 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(at::isFloatingType(probabilities.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ",
              probabilities.scalar_type());
  TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples");
  const int64_t categories = probabilities.size(-1);
  TORCH_CHECK(replacement || count <= categories,
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
  // Beyond, floats do not tell every category from the next.
  TORCH_CHECK(categories <= (1 << 24), "number of categories cannot exceed 2^24");
}

// --- Values that they refuse ----------------------------------------------------------------

// (weights [.., categories], ..)
bool no_distribution(const KnownArguments& a) {
  const std::optional<at::Tensor> weights = a.known(a.tensor(0));
  if (!weights || weights->numel() == 0) return false;
  const at::Tensor sums = weights->sum(-1);
  return !(weights->min().item<double>() >= 0) || !(sums.min().item<double>() > 0) ||
         !(sums.max().item<double>() < std::numeric_limits<double>::infinity());
}

// (mean, std, ..), one of them a tensor
bool deviations(const KnownArguments& a) {
  return exceeds(a, a[1], 0, std::numeric_limits<double>::infinity());
}

// --- Shapes ---------------------------------------------------------------------------------

// native_dropout(input, p, train) -> (output, mask)
void native_dropout_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  if (!x.is_floating_point()) return call.pytorch();
  call.results({meta_of_elementwise({x}, x.scalar_type()), meta_of_elementwise({x}, at::kBool)});
}

// (size, [generator,] dtype, layout, device, pin_memory): a tensor without elements may have any
// dtype.
void randn_meta(MetaCall& call) {
  const c10::IValue& given = call[call.size() - 4];
  const at::ScalarType dtype =
      given.isNone() ? c10::get_default_dtype_as_scalartype() : given.toScalarType();
  const auto* geometry = lazy::intern_contiguous(dtype, call[0].toIntVector());
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isIntegralType(dtype, true) || geometry->numel == 0,
                              "\"normal_kernel_cpu\" not implemented for '", dtype, "'");
  call.results({meta_tensor(*geometry, false)});
}

// (grad_output, mask, scale): PyTorch's has no strides.
void native_dropout_backward_meta(MetaCall& call) {
  const at::Tensor masked = at::mul(call.tensor(0), call.tensor(1));
  call.results({at::mul(masked, call[2].toScalar())});
}

// (self, num_samples, ..)
void multinomial_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  const int64_t count = call[1].toInt();
  if ((x.dim() != 1 && x.dim() != 2) || count <= 0) return call.pytorch();
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end() - 1);
  sizes.push_back(count);
  call.results({meta_of_sizes(at::kLong, sizes)});
}

}  // namespace

namespace rules {

const RuleFunction bernoulli = ops::bernoulli;
const RuleFunction bernoulli_tensor = ops::bernoulli_tensor;
const RuleFunction bernoulli_number = ops::bernoulli_number;

}  // namespace rules

const Rules random_rules([](Registry& r) {
  r.add("aten::uniform", uniform).dynamic_floats = {1, 2};
  for (const char* name :
       {"aten::rand", "aten::rand.generator", "aten::rand_like", "aten::rand_like.generator"}) {
    r.add(name, unit_uniform);
  }
  for (const char* name :
       {"aten::randn", "aten::randn.generator", "aten::randn_like", "aten::randn_like.generator"}) {
    r.add(name, unit_normal);
  }
  r.add("aten::normal_functional", normal_numbers<1, 2>).dynamic_floats = {1, 2};
  r.add("aten::normal.float_float", normal_numbers<0, 1>).dynamic_floats = {0, 1};
  r.add("aten::normal.Tensor_float", normal_tensor_float).dynamic_floats = {1};
  r.add("aten::normal.float_Tensor", normal_float_tensor).dynamic_floats = {0};
  r.add("aten::normal.Tensor_Tensor", normal<0, 1>);
  r.add("aten::log_normal", log_normal).dynamic_floats = {1, 2};
  r.add("aten::exponential", exponential).dynamic_floats = {1};
  r.add("aten::cauchy", cauchy).dynamic_floats = {1, 2};
  r.add("aten::geometric", geometric).dynamic_floats = {1};

  r.add("aten::random", random);
  r.add("aten::random.from", random_from);
  r.add("aten::random.to", integers_below<1>);
  r.add("aten::randint", integers_below<0>);
  r.add("aten::randint.generator", integers_below<0>);
  r.add("aten::randint.low", integers_between<0>);
  r.add("aten::randint.low_generator", integers_between<0>);
  r.add("aten::randint_like", integers_below<1>);
  r.add("aten::randint_like.generator", integers_below<1>);
  r.add("aten::randint_like.low_dtype", integers_between<1>);
  r.add("aten::randint_like.low_generator_dtype", integers_between<1>);
  r.add("aten::randperm", randperm);
  r.add("aten::randperm.generator", randperm);

  r.add("aten::native_dropout", native_dropout).dynamic_floats = {1};
  r.add("aten::native_dropout_backward", native_dropout_backward).dynamic_floats = {2};
  r.add("aten::_fused_dropout", fused_dropout).dynamic_floats = {1};
  r.add("aten::_masked_scale", native_dropout_backward).dynamic_floats = {2};
  r.add("aten::rrelu_with_noise_functional", rrelu_with_noise);
  r.add("aten::poisson", poisson).on_cpu = faster_on_host<>;
  r.all("aten::poisson").suspects_values = are_no_rates;
  r.add("aten::multinomial", multinomial);

  r.all("aten::uniform").checks_numbers = check_uniform;
  r.all("aten::normal_functional").checks_numbers = check_normal_of_self;
  r.all("aten::normal").suspects_values = deviations;
  r.one("aten::normal.Tensor_float").checks_numbers = check_normal;
  r.one("aten::normal.float_float").checks_numbers = check_normal;
  r.all("aten::log_normal").checks_numbers = check_log_normal;
  r.all("aten::exponential").checks_numbers = check_exponential;
  r.all("aten::cauchy").checks_numbers = check_cauchy;
  r.all("aten::geometric").checks_numbers = check_geometric;
  r.one("aten::random.to").checks_numbers = check_random_to;
  r.one("aten::random.from").checks_numbers = check_random_from;
  r.one("aten::randint").checks_numbers = check_randint<false, 0, 2>;
  r.one("aten::randint.generator").checks_numbers = check_randint<false, 0, 3>;
  r.one("aten::randint.low").checks_numbers = check_randint<true, 1, 3>;
  r.one("aten::randint.low_generator").checks_numbers = check_randint<true, 1, 4>;
  r.one("aten::randint_like").checks_numbers = check_randint<false, 1, 2>;
  r.one("aten::randint_like.generator").checks_numbers = check_randint<false, 1, 3>;
  r.one("aten::randint_like.low_dtype").checks_numbers = check_randint<true, 2, 3>;
  r.one("aten::randint_like.low_generator_dtype").checks_numbers = check_randint<true, 2, 4>;
  r.all("aten::multinomial") = {.meta = multinomial_meta,
                                .checks_call = check_multinomial,
                                .suspects_values = no_distribution};
  r.all("aten::randn").meta = randn_meta;
  r.all("aten::native_dropout").meta = native_dropout_meta;
  r.all("aten::native_dropout_backward").meta = native_dropout_backward_meta;
  for (const char* name : {"aten::rrelu_with_noise", "aten::rrelu_with_noise_functional"}) {
    r.all(name).layout = row_major;
  }
});

}  // namespace torch_xla::ops
