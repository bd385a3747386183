// Batch normalization: statistics over all dimensions but the channels.
#include "ops/norm.h"

#include <array>

#include "ops/rules.h"
#include "ops/value_checks.h"

namespace torch_xla::ops {

using hlo::DType;
using hlo::Value;
using hlo::Values;

Value first_of_batch(const Value& x) {
  hlo::Builder& b = x.builder();
  if (b.mesh() == nullptr) return hlo::slice_dim(x, 0, 0, 1);
  const Value is_first = hlo::equal(hlo::iota(b, x.type().with(DType::S32), 0), 0);
  const std::array<int64_t, 1> batch = {0};
  const Value sum = reduce_sum(hlo::select(is_first, x, hlo::zero(b, x.type())), batch);
  hlo::Dims one = x.dims();
  one[0] = 1;
  return hlo::reshape(sum, one);
}

namespace {

constexpr std::array<int64_t, 1> kBatch = {0}, kChannels = {1};

// Sum over all dimensions but the channels: [C].
Value channel_sum(const Lowering& l, const Value& x) {
  return reduce_sum(sum_trailing(l, x, x.rank() - 2), kBatch);
}
// A value per channel, over the whole of x.
Value over(const Value& per_channel, const Value& x) {
  return hlo::broadcast_in_dim(per_channel, x.dims(), kChannels);
}

double elements_per_channel(const Value& x) {
  return x.dim(1) == 0 ? 0.0 : static_cast<double>(x.type().elements() / x.dim(1));
}

Value optional_in(const Lowering& l, size_t arg, DType dtype) {
  return l.has(arg) ? hlo::convert(l.in(arg), dtype) : Value();
}

struct Normalized {
  Value output, mean, invstd, var;
};

// Distances from the mean first: x*scale - mean*scale, as PyTorch's CPU kernel has it, cancels.
Normalized normalize(const Value& x, const Value& mean, const Value& var, const Value& weight,
                     const Value& bias, double eps) {
  const Value invstd = hlo::rsqrt(var + eps);
  const Value scale = weight ? invstd * weight : invstd;
  const Value y = (x - over(mean, x)) * over(scale, x);
  return {bias ? y + over(bias, x) : y, mean, invstd, var};
}

Normalized by_batch_statistics(const Lowering& l, const Value& x, const Value& weight,
                               const Value& bias, double eps) {
  const double n = elements_per_channel(x);
  const Value mean =
      mean_of(x, kChannels, [&](const Value& distance) { return channel_sum(l, distance); });
  const Value centered = x - over(mean, x);
  const Value var = channel_sum(l, hlo::square(centered)) / n;
  return normalize(x, mean, var, weight, bias, eps);
}

// The forms of batch norm: where their arguments stand (0: not there) and what they return.
struct Form {
  size_t running_mean, running_var, training, momentum, eps;
  bool always_training = false;
  size_t updated = 0;  // first of the two results that are the new running statistics
  size_t reserve = 0;  // a result that is empty
};

template <Form form>
Values batch_norm(Lowering& l) {
  const DType compute = compute_dtype(l.in(0).dtype());
  const Value x = hlo::convert(l.in(0), compute);
  const Value weight = optional_in(l, 1, compute), bias = optional_in(l, 2, compute);
  const bool training = form.always_training || (form.training != 0 && l.flag(form.training));
  const double eps = l.floating(form.eps);
  Value running_mean, running_var;
  if constexpr (form.running_mean != 0) {
    running_mean = optional_in(l, form.running_mean, compute);
    running_var = optional_in(l, form.running_var, compute);
  }
  if (!training && (!running_mean || !running_var)) {
    throw std::invalid_argument(
        "batch_norm: expected running_mean and running_var when training is False, got none. "
        "Pass training=True or running statistics.");
  }
  const Normalized y = training ? by_batch_statistics(l, x, weight, bias, eps)
                                : normalize(x, running_mean, running_var, weight, bias, eps);
  Values all(l.num_outputs());
  all[0] = y.output;
  for (size_t i : {1, 2}) {
    // Without training PyTorch's CPU kernels return empty statistics.
    all[i] = l.out(i).elements() == 0 ? hlo::zero(l.b, l.out(i)) : i == 1 ? y.mean : y.invstd;
  }
  if constexpr (form.reserve != 0) all[form.reserve] = hlo::zero(l.b, l.out(form.reserve));
  if constexpr (form.updated != 0) {
    all[form.updated] = running_mean;
    all[form.updated + 1] = running_var;
    if (training) {
      const Value m = number_like(l, form.momentum, y.mean);
      const double n = elements_per_channel(x);
      const Value unbiased = y.var * (n / (n - 1));
      all[form.updated] = running_mean * (1 - m) + y.mean * m;
      all[form.updated + 1] = running_var * (1 - m) + unbiased * m;
    }
  }
  return results(l, all);
}

// (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, ...)
Values batch_norm_backward(Lowering& l) {
  const DType compute = compute_dtype(l.in(1).dtype());
  const Value grad = hlo::convert(l.in(0), compute), x = hlo::convert(l.in(1), compute);
  const Value weight = optional_in(l, 2, compute);
  const bool train = l.flag(7);
  Value mean, invstd;
  if (train) {
    mean = hlo::convert(l.in(5), compute);
    invstd = hlo::convert(l.in(6), compute);
  } else {
    mean = hlo::convert(l.in(3), compute);
    invstd = hlo::rsqrt(hlo::convert(l.in(4), compute) + l.floating(8));
  }
  const double n = elements_per_channel(x);
  const Value centered = x - over(mean, x);
  const Value grad_sum = channel_sum(l, grad);
  const Value projection = channel_sum(l, grad * centered);
  const Value scale = weight ? invstd * weight : invstd;
  Value grad_input = grad;
  if (train) {
    grad_input = grad_input - over(grad_sum / n, x) -
                 centered * over(projection / n * hlo::square(invstd), x);
  }
  return results(l, Values{grad_input * over(scale, x), projection * invstd, grad_sum});
}

// One form for each overload.
constexpr Form kFunctional = {
    .running_mean = 3, .running_var = 4, .training = 5, .momentum = 6, .eps = 7, .updated = 3};
constexpr Form kNoStats = {
    .running_mean = 0, .running_var = 0, .training = 3, .momentum = 4, .eps = 5};
constexpr Form kNoTraining = {
    .running_mean = 3, .running_var = 4, .training = 0, .momentum = 5, .eps = 6};
constexpr Form kWithUpdate = {.running_mean = 3,
                              .running_var = 4,
                              .training = 0,
                              .momentum = 5,
                              .eps = 6,
                              .always_training = true,
                              .updated = 4,
                              .reserve = 3};
constexpr Form kNoUpdate = {
    .running_mean = 3, .running_var = 4, .training = 0, .momentum = 5, .eps = 6, .reserve = 3};

}  // namespace

// (input, ...): dimensions of one element may have any stride.
at::MemoryFormat batch_norm_layout(const Arguments& a) {
  const at::Tensor input = a.tensor(0);
  if (input.is_contiguous()) return at::MemoryFormat::Contiguous;
  for (const auto last : {at::MemoryFormat::ChannelsLast, at::MemoryFormat::ChannelsLast3d}) {
    const bool fits = input.dim() == (last == at::MemoryFormat::ChannelsLast ? 4 : 5);
    if (fits && input.is_contiguous(last)) return last;
  }
  return input.suggest_memory_format();
}

namespace rules {

const RuleFunction batch_norm_without_statistics = ops::batch_norm<kNoStats>;

}  // namespace rules

const Rules norm_rules([](Registry& r) {
  // A momentum of 1/steps changes at each step.
  r.add("aten::_native_batch_norm_legit_functional", batch_norm<kFunctional>).dynamic_floats = {6};
  r.add("aten::_native_batch_norm_legit_no_training", batch_norm<kNoTraining>).dynamic_floats = {5};
  r.add("aten::_batch_norm_with_update_functional", batch_norm<kWithUpdate>).dynamic_floats = {5};
  r.add("aten::_batch_norm_no_update", batch_norm<kNoUpdate>).dynamic_floats = {5};
  r.add("aten::native_batch_norm_backward", batch_norm_backward);
  r.add("aten::batch_norm_backward", batch_norm_backward);

  for (const std::string_view name :
       {"aten::_batch_norm_no_update", "aten::_batch_norm_with_update_functional",
        "aten::_native_batch_norm_legit_functional",
        "aten::_native_batch_norm_legit_no_training"}) {
    // PyTorch's C++ code of some calls the CPU's kernel.
    r.all(name) = {.python_meta = name.find("legit") == name.npos,
                   .layout = batch_norm_layout,
                   .checks_numbers = on_one_device};
  }
});

}  // namespace torch_xla::ops
