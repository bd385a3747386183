// Whole optimizer steps over lists of parameters, as torch.optim's fused implementations call them,
// and the loss scaling of automatic mixed precision.
#include <span>
#include <vector>

#include "lazy/operator.h"
#include "ops/common.h"
#include "ops/host_rules.h"
#include "ops/meta.h"

namespace torch_xla::ops {

namespace {

using hlo::DType;
using hlo::Type;
using hlo::Value;
using hlo::Values;

// A number of the step in f64, as PyTorch computes with its own before it rounds them once.
Value step_number(const Lowering& l, size_t arg) { return l.number(arg, DType::F64); }

// One 0-dim number for all elements of x.
Value spread_number(const Value& number, const Value& x) {
  return hlo::broadcast_to(hlo::convert(number, x.dtype()), x.dims());
}

// The step counts of all parameters in one vector: what depends on them is computed once for all.
Value stack_steps(const Lowering& l, std::span<const Value> steps) {
  Values rows;
  for (const Value& step : steps) {
    rows.push_back(hlo::reshape(hlo::convert(step, DType::F64), {1}));
  }
  return rows.empty() ? hlo::zero(l.b, {DType::F64, {0}}) : hlo::concatenate(rows, 0);
}
Value element(const Value& vector, size_t i) {
  return hlo::reshape(
      hlo::slice_dim(vector, 0, static_cast<int64_t>(i), static_cast<int64_t>(i) + 1), {});
}

// One step of a fused optimizer: gradient scaling, `maximize` and skipping of a step whose
// gradients overflowed. Results are collected list after list.
class FusedStep {
 public:
  FusedStep(const Lowering& l, size_t lists, size_t grad_scale)
      : l_(l), results_(lists), count_(l.list(0).size()) {
    if (l.has(grad_scale)) inverse_scale_ = 1.0 / hlo::convert(l.in(grad_scale), DType::F64);
    if (l.has(grad_scale + 1)) {
      const Value found = hlo::reshape(l.in(grad_scale + 1), {});
      skip_ = hlo::equal(found, 1.0);
    }
  }

  size_t count() const { return count_; }

  // The gradient as stored back: unscaled.
  Value stored_gradient(const Value& gradient) const {
    if (!inverse_scale_) return gradient;
    const Value wide = cast(gradient, compute_dtype(gradient.dtype()));
    return wide * spread_number(hlo::reshape(inverse_scale_, {}), wide);
  }

  // Result of one element of list `list`: `updated`, or `old` in a skipped step.
  void put(size_t list, const Value& old, const Value& updated) {
    Value x = cast(updated, old.dtype());
    if (skip_) x = hlo::select(hlo::broadcast_to(skip_, x.dims()), old, x);
    results_[list].push_back(x);
  }

  Values results() const {
    Values flat;
    for (const Values& list : results_) flat.insert(flat.end(), list.begin(), list.end());
    for (size_t i = 0; i < flat.size(); ++i) flat[i] = as_result(l_, flat[i], i);
    return flat;
  }

 private:
  const Lowering& l_;
  std::vector<Values> results_;
  size_t count_;
  Value inverse_scale_, skip_;
};

// Gives the gradient to descend along, the parameter's decay included.
Value decayed(const Value& gradient, bool maximize, const Value& parameter, const Value& decay) {
  return (maximize ? -gradient : gradient) + parameter * spread_number(decay, parameter);
}

// --- Adam and AdamW ------------------------------------------------------------------------

// Schema: self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps, lr, beta1, beta2,
// weight_decay, eps, amsgrad, maximize, grad_scale, found_inf. Steps were counted up before.
template <bool Decoupled>
Values fused_adam(Lowering& l) {
  FusedStep fused(l, 5, 13);
  const Values parameters = l.list(0), gradients = l.list(1), averages = l.list(2),
               squares = l.list(3), largest = l.list(4);
  const Value lr = step_number(l, 6), beta1 = step_number(l, 7), beta2 = step_number(l, 8);
  const Value decay = step_number(l, 9);
  const double eps = l.floating(10);
  const bool amsgrad = l.flag(11), maximize = l.flag(12);

  const Value steps = stack_steps(l, l.list(5));
  const auto correction = [&](const Value& beta) {
    return 1.0 - hlo::pow(hlo::broadcast_to(beta, steps.dims()), steps);
  };
  const Value step_sizes = hlo::broadcast_to(lr, steps.dims()) / correction(beta1);
  const Value root_corrections = hlo::sqrt(correction(beta2));

  for (size_t i = 0; i < fused.count(); ++i) {
    const DType compute = compute_dtype(parameters[i].dtype());
    const Value stored = fused.stored_gradient(gradients[i]);
    Value gradient = cast(stored, compute);
    Value parameter = cast(parameters[i], compute);
    Value average = cast(averages[i], compute);
    Value square = cast(squares[i], compute);
    if (maximize) gradient = -gradient;
    if (Decoupled) {
      parameter = parameter - spread_number(lr * decay, parameter) * parameter;
    } else {
      gradient = gradient + parameter * spread_number(decay, parameter);
    }
    average = average + spread_number(1.0 - beta1, average) * (gradient - average);
    square = square * spread_number(beta2, square) +
             spread_number(1.0 - beta2, square) * hlo::square(gradient);
    Value denominator = square;
    if (amsgrad) {
      denominator = hlo::max(cast(largest[i], compute), square);
      fused.put(4, largest[i], denominator);
    }
    denominator =
        hlo::sqrt(denominator) / spread_number(element(root_corrections, i), square) + eps;
    parameter = parameter - spread_number(element(step_sizes, i), average) * average / denominator;
    fused.put(0, parameters[i], parameter);
    fused.put(1, gradients[i], stored);
    fused.put(2, averages[i], average);
    fused.put(3, squares[i], square);
  }
  if (!amsgrad) {
    for (const Value& x : largest) fused.put(4, x, x);
  }
  return fused.results();
}

// --- SGD -----------------------------------------------------------------------------------

// Schema: self, grads, momentum_buffer_list, weight_decay, momentum, lr, dampening, nesterov,
// maximize, is_first_step, grad_scale, found_inf. Without momentum the list of buffers is empty.
Values fused_sgd(Lowering& l) {
  FusedStep fused(l, 3, 10);
  const Values parameters = l.list(0), gradients = l.list(1), buffers = l.list(2);
  const Value decay = step_number(l, 3), momentum = step_number(l, 4), lr = step_number(l, 5);
  const Value damped = 1.0 - step_number(l, 6);
  const bool nesterov = l.flag(7), maximize = l.flag(8), first = l.flag(9);

  for (size_t i = 0; i < fused.count(); ++i) {
    const DType compute = compute_dtype(parameters[i].dtype());
    const Value stored = fused.stored_gradient(gradients[i]);
    const Value parameter = cast(parameters[i], compute);
    Value gradient = decayed(cast(stored, compute), maximize, parameter, decay);
    if (!buffers.empty()) {
      Value buffer = gradient;
      if (!first) {
        buffer = cast(buffers[i], compute);
        buffer =
            buffer * spread_number(momentum, buffer) + gradient * spread_number(damped, buffer);
      }
      fused.put(2, buffers[i], buffer);
      gradient = nesterov ? gradient + buffer * spread_number(momentum, buffer) : buffer;
    }
    fused.put(0, parameters[i], parameter - spread_number(lr, gradient) * gradient);
    fused.put(1, gradients[i], stored);
  }
  return fused.results();
}

// --- Adagrad -------------------------------------------------------------------------------

// Schema: self, grads, state_sums, state_steps, lr, lr_decay, weight_decay, eps, maximize,
// grad_scale, found_inf. Steps were counted up before; one overload returns them as they are.
Values fused_adagrad(Lowering& l) {
  const Values parameters = l.list(0), gradients = l.list(1), sums = l.list(2), counts = l.list(3);
  const bool returns_steps = l.num_outputs() == 4 * parameters.size();
  FusedStep fused(l, 4, 9);
  const Value lr = step_number(l, 4), lr_decay = step_number(l, 5), decay = step_number(l, 6);
  const double eps = l.floating(7);
  const bool maximize = l.flag(8);

  const Value steps = stack_steps(l, counts);
  const Value rates = hlo::broadcast_to(lr, steps.dims()) /
                      (1.0 + (steps - 1.0) * hlo::broadcast_to(lr_decay, steps.dims()));
  for (size_t i = 0; i < fused.count(); ++i) {
    const DType compute = compute_dtype(parameters[i].dtype());
    const Value stored = fused.stored_gradient(gradients[i]);
    const Value parameter = cast(parameters[i], compute);
    const Value gradient = decayed(cast(stored, compute), maximize, parameter, decay);
    const Value sum = cast(sums[i], compute) + hlo::square(gradient);
    const Value rate = spread_number(element(rates, i), gradient);
    fused.put(0, parameters[i], parameter - rate * gradient / (hlo::sqrt(sum) + eps));
    fused.put(1, gradients[i], stored);
    fused.put(2, sums[i], sum);
    if (returns_steps) fused.put(3, counts[i], counts[i]);
  }
  return fused.results();
}

// --- loss scaling --------------------------------------------------------------------------

// Gradients times `inv_scale`; the second result turns 1 when one of them was not finite.
Values unscale(Lowering& l) {
  const Values gradients = l.list(0);
  Value found = l.in(1);
  Values results;
  for (const Value& gradient : gradients) {
    const Value wide = cast(gradient, compute_dtype(gradient.dtype()));
    const std::vector<int64_t> dims = all_dims(gradient.rank());
    const Value bad = hlo::convert(~hlo::is_finite(wide), found.dtype());
    found = hlo::max(found, hlo::reshape(reduce_max(bad, dims), found.dims()));
    results.push_back(
        as_result(l, wide * spread_number(hlo::reshape(l.in(2), {}), wide), results.size()));
  }
  results.push_back(as_result(l, found, results.size()));
  return results;
}

// Schema: scale, growth_tracker, found_inf, growth_factor, backoff_factor, growth_interval.
Values update_scale(Lowering& l) {
  const Value scale = l.in(0), tracker = l.in(1);
  const Value found = hlo::reshape(hlo::not_equal(l.in(2), 0.0), scale.dims());
  const Value next = tracker + hlo::one(l.b, tracker.type());
  const Value full =
      hlo::reshape(hlo::equal(next, hlo::splat_int(l.b, l.integer(5), next.type())), scale.dims());
  const Value grown = scale * l.floating(3);
  const Value kept = hlo::select(full & hlo::is_finite(grown), grown, scale);
  const Value restart = hlo::reshape(found | full, tracker.dims());
  return {as_result(l, hlo::select(found, scale * l.floating(4), kept), 0),
          as_result(l, hlo::select(restart, hlo::zero(l.b, next.type()), next), 1)};
}

// One call for all parameters, in place. XLA's code is a fusion for each parameter, each of which
// costs compile time. Argument lists come before all else; the results are the first of them again.
Values fused_step_on_host(Lowering& l) {
  const lazy::Signature& signature = l.signature();
  const auto& arguments = signature.op->schema().arguments();
  size_t grad_scale = 0;
  while (arguments[grad_scale].name() != "grad_scale") ++grad_scale;
  std::vector<Values> lists;
  size_t given = 0;
  for (size_t i = 0; given < l.num_outputs(); given += lists[i++].size()) {
    lists.push_back(l.list(i));
  }
  bool suits = true;
  for (const Values& list : lists) {
    for (const Value& x : list) {
      suits = suits && hlo::is_float(x.dtype()) && x.dtype() == lists[0][0].dtype() &&
              x.type().elements() != 0;
    }
  }
  if (lists.empty() || !suits || !choose_host(true)) return xla_code(l);

  // The kernel stores gradients only where it unscales them.
  constexpr size_t kGradients = 1;
  std::vector<size_t> updated;
  for (size_t i = 0; i < lists.size(); ++i) {
    if (i != kGradients || l.has(grad_scale)) updated.push_back(i);
  }
  std::string name = signature.op->name;
  name.insert(std::min(name.find('.'), name.size()), "_");
  Values results;
  const Values updates = on_host_in_place(l, name, updated, Fails::Never);
  auto next = updates.begin();
  for (size_t i = 0; i < lists.size(); ++i) {
    const bool kept = std::find(updated.begin(), updated.end(), i) == updated.end();
    for (const Value& old : lists[i]) results.push_back(kept ? old : *next++);
  }
  return results;
}

// The forms in place have no results. PyTorch's Python functions compute them for each parameter.
void no_results(MetaCall& call) { call.results({}); }

}  // namespace

const Rules optim_rules([](Registry& r) {
  // Everything that schedulers change travels at run time: learning rates, betas and momentum,
  // weight decay. A learning rate that is a tensor does so anyway.
  const auto add = [&](const char* name, RuleFunction rule, std::vector<size_t> floats) {
    Rule& added = r.add(name, rule);
    added.on_cpu = fused_step_on_host;
    added.dynamic_floats = std::move(floats);
  };
  add("aten::_fused_adam", fused_adam<false>, {6, 7, 8, 9});
  add("aten::_fused_adam.tensor_lr", fused_adam<false>, {7, 8, 9});
  add("aten::_fused_adamw", fused_adam<true>, {6, 7, 8, 9});
  add("aten::_fused_adamw.tensor_lr", fused_adam<true>, {7, 8, 9});
  add("aten::_fused_sgd", fused_sgd, {3, 4, 5, 6});
  add("aten::_fused_sgd.tensor_lr", fused_sgd, {3, 4, 6});
  r.add("aten::_fused_adagrad", fused_adagrad).dynamic_floats = {4, 5, 6};
  r.add("aten::_fused_adagrad.tensor_lr", fused_adagrad).dynamic_floats = {5, 6};
  for (const char* name :
       {"aten::_fused_adam", "aten::_fused_adamw", "aten::_fused_sgd", "aten::_fused_adagrad"}) {
    r.all(name).meta_in_place = no_results;
  }
  r.add("aten::_amp_foreach_non_finite_check_and_unscale", unscale);
  r.add("aten::_amp_update_scale", update_scale);
});

}  // namespace torch_xla::ops
