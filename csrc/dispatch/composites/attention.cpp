// scaled_dot_product_attention on xla: one recorded call with a gradient of its own, that never
// keeps the matrix of probabilities.
#include <cmath>
#include <limits>
#include <tuple>

#include <ATen/ExpandUtils.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/scaled_dot_product_attention_native.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "dispatch/calls/composite.h"
#include "dispatch/calls/own_operator.h"
#include "ops/rules.h"

namespace torch_xla::dispatch {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor>;

at::ScalarType wide(at::ScalarType dtype) {
  return dtype == at::kBFloat16 || dtype == at::kHalf ? at::kFloat : dtype;
}

std::tuple<Tensor, Tensor> attention_meta(const Tensor& query, const Tensor& /*key*/,
                                          const Tensor& value, const OptionalTensor& /*mask*/,
                                          const OptionalTensor& /*keep*/, double /*dropout_p*/,
                                          bool /*is_causal*/, double /*scale*/) {
  std::vector<c10::SymInt> sizes = query.sym_sizes().vec();
  const std::vector<c10::SymInt> row(sizes.begin(), sizes.end() - 1);
  sizes.back() = value.sym_size(-1);
  return {at::empty_symint(sizes, query.options()),
          at::empty_symint(row, query.options().dtype(wide(query.scalar_type())))};
}

Gradients attention_backward_meta(const Tensor& /*grad*/, const Tensor& query, const Tensor& key,
                                  const Tensor& value, const Tensor& /*output*/,
                                  const Tensor& /*logsumexp*/, const OptionalTensor& mask,
                                  const OptionalTensor& /*keep*/, double /*dropout_p*/,
                                  bool /*is_causal*/, double /*scale*/, bool mask_grad) {
  const auto like = [](const Tensor& t) { return at::empty_symint(t.sym_sizes(), t.options()); };
  return {like(query), like(key), like(value),
          mask_grad ? like(*mask) : at::empty({0}, query.options())};
}

// --- by PyTorch's operators, to compare with -------------------------------------------------

// (output, logsumexp)
std::tuple<Tensor, Tensor> attention_on_cpu(const Tensor& query, const Tensor& key,
                                            const Tensor& value, const OptionalTensor& mask,
                                            const OptionalTensor& keep, double dropout_p,
                                            bool is_causal, double scale) {
  const at::ScalarType dtype = wide(query.scalar_type());
  const int64_t group = query.dim() > 2 ? query.size(-3) / key.size(-3) : 1;
  const auto heads = [&](const Tensor& t) {
    return group == 1 ? t.to(dtype) : t.to(dtype).repeat_interleave(group, -3);
  };
  Tensor scores = at::matmul(query.to(dtype), heads(key).mT()) * scale;
  const double lowest = -std::numeric_limits<double>::infinity();
  if (mask) {
    scores = mask->scalar_type() == at::kBool ? scores.masked_fill(mask->logical_not(), lowest)
                                              : scores + *mask;
  }
  if (is_causal) {
    const Tensor later =
        at::ones({query.size(-2), key.size(-2)}, scores.options().dtype(at::kBool));
    scores = scores.masked_fill(later.triu(1), lowest);
  }
  Tensor logsumexp = scores.logsumexp(-1);
  logsumexp = logsumexp.masked_fill(logsumexp == lowest, 0);  // of what attends to nothing
  Tensor weights = at::_safe_softmax(scores, -1);
  if (keep) weights = weights * keep->to(dtype) / (1 - dropout_p);
  return {at::matmul(weights, heads(value)).to(query.scalar_type()), logsumexp};
}

Gradients attention_backward_on_cpu(const Tensor& grad, const Tensor& query, const Tensor& key,
                                    const Tensor& value, const Tensor& /*output*/,
                                    const Tensor& /*logsumexp*/, const OptionalTensor& mask,
                                    const OptionalTensor& keep, double dropout_p, bool is_causal,
                                    double scale, bool mask_grad) {
  const at::AutoGradMode enabled(true);
  const auto input = [](const Tensor& t) { return t.detach().requires_grad_(); };
  torch::autograd::variable_list inputs = {input(query), input(key), input(value)};
  if (mask_grad) inputs.push_back(input(*mask));
  const Tensor output = std::get<0>(attention_on_cpu(inputs[0], inputs[1], inputs[2],
                                                     mask_grad ? OptionalTensor(inputs[3]) : mask,
                                                     keep, dropout_p, is_causal, scale));
  const auto grads = torch::autograd::grad({output}, inputs, {grad});
  return {grads[0], grads[1], grads[2], mask_grad ? grads[3] : Tensor()};
}

// --- the operators and their gradients -------------------------------------------------------

const OwnOperator attention(
    "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, Tensor? keep, float "
    "dropout_p, bool is_causal, float scale) -> (Tensor, Tensor)",
    attention_meta, ops::rules::attention, ops::rules::attention_on_host, attention_on_cpu);
const OwnOperator attention_backward(
    "attention_backward(Tensor grad, Tensor query, Tensor key, Tensor value, Tensor output, "
    "Tensor logsumexp, Tensor? mask, Tensor? keep, float dropout_p, bool is_causal, float scale, "
    "bool mask_grad) -> (Tensor, Tensor, Tensor, Tensor)",
    attention_backward_meta, ops::rules::attention_backward, ops::rules::attention_backward_on_host,
    attention_backward_on_cpu);

class Attention : public torch::autograd::Function<Attention> {
 public:
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& query,
                        const Tensor& key, const Tensor& value, const OptionalTensor& mask,
                        const OptionalTensor& keep, double dropout_p, bool is_causal,
                        double scale) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [output, logsumexp] =
        attention(query, key, value, mask, keep, dropout_p, is_causal, scale);
    ctx->save_for_backward(
        {query, key, value, mask.value_or(Tensor()), keep.value_or(Tensor()), output, logsumexp});
    ctx->saved_data["dropout_p"] = dropout_p;
    ctx->saved_data["is_causal"] = is_causal;
    ctx->saved_data["scale"] = scale;
    return output;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    const double dropout_p = ctx->saved_data["dropout_p"].toDouble();
    const bool is_causal = ctx->saved_data["is_causal"].toBool();
    const double scale = ctx->saved_data["scale"].toDouble();
    torch::autograd::variable_list results(8);
    if (at::GradMode::is_enabled()) {
      const bool grouped = saved[0].dim() > 2 && saved[0].sym_size(-3) != saved[1].sym_size(-3);
      const auto formula = [&](const Tensors& x) -> Tensors {
        return {std::get<0>(at::_scaled_dot_product_attention_math(
            x[0], x[1], x[2], given(x[3]), dropout_p, is_causal, given(saved[4]), scale, grouped))};
      };
      differentiable_gradients(formula, {saved.begin(), saved.begin() + 4}, grads, results);
      return results;
    }
    const bool mask_grad = saved[3].defined() && saved[3].requires_grad();
    auto [query, key, value, mask] = attention_backward(
        grads[0], saved[0], saved[1], saved[2], saved[5], saved[6], given(saved[3]),
        given(saved[4]), dropout_p, is_causal, scale, mask_grad);
    results[0] = query;
    results[1] = key;
    results[2] = value;
    if (mask_grad) results[3] = mask;
    return results;
  }
};

// Calls that PyTorch's composite must see: its errors, and what the one call does not compute.
bool is_plain(const Tensor& query, const Tensor& key, const Tensor& value,
              const OptionalTensor& mask, double dropout_p, bool is_causal) {
  if (functorch_is_active()) return false;
  for (const Tensor* t : {&query, &key, &value}) {
    if (t->dim() < 2 || t->dim() != query.dim() || !t->device().is_xla() || t->sym_numel() == 0 ||
        t->scalar_type() != query.scalar_type() || !at::isFloatingType(t->scalar_type())) {
      return false;
    }
  }
  if (query.sym_size(-1) != key.sym_size(-1) || key.sym_size(-2) != value.sym_size(-2)) {
    return false;
  }
  if (mask && (is_causal || !mask->device().is_xla() || mask->dim() > query.dim())) return false;
  return dropout_p >= 0 && dropout_p <= 1;
}

// The leading dimensions of all three as one batch; keys and values may have fewer heads.
bool expand_batches(Tensor& query, Tensor& key, Tensor& value, bool enable_gqa) {
  const int64_t dims = query.dim();
  if (enable_gqa) {
    if (dims < 3) return false;
    const c10::SymInt heads = key.sym_size(-3);
    if (heads != value.sym_size(-3) || query.sym_size(-3) % heads != 0) return false;
    for (int64_t i = 0; i < dims - 3; ++i) {
      const c10::SymInt size = query.sym_size(i);
      if (key.sym_size(i) != size || value.sym_size(i) != size) return false;
    }
    return true;
  }
  std::vector<c10::SymInt> batch(query.sym_sizes().begin(), query.sym_sizes().end() - 2);
  for (const Tensor* t : {&key, &value}) {
    for (int64_t i = 0; i < dims - 2; ++i) {
      if (batch[i] == 1) batch[i] = t->sym_size(i);
      if (t->sym_size(i) != 1 && t->sym_size(i) != batch[i]) return false;
    }
  }
  for (Tensor* t : {&query, &key, &value}) {
    std::vector<c10::SymInt> sizes = batch;
    sizes.insert(sizes.end(), {t->sym_size(-2), t->sym_size(-1)});
    if (t->sym_sizes() != c10::SymIntArrayRef(sizes)) *t = t->expand_symint(sizes);
  }
  return true;
}

Tensor scaled_dot_product_attention(const Tensor& query_in, const Tensor& key_in,
                                    const Tensor& value_in, const OptionalTensor& mask_in,
                                    double dropout_p, bool is_causal, std::optional<double> scale,
                                    bool enable_gqa) {
  const auto composite = [&] {
    return at::native::scaled_dot_product_attention(query_in, key_in, value_in, mask_in, dropout_p,
                                                    is_causal, scale, enable_gqa);
  };
  if (!is_plain(query_in, key_in, value_in, mask_in, dropout_p, is_causal)) return composite();
  Tensor query = query_in, key = key_in, value = value_in;
  if (!expand_batches(query, key, value, enable_gqa)) return composite();
  std::vector<c10::SymInt> scores = query.sym_sizes().vec();
  scores.back() = key.sym_size(-2);
  if (mask_in) {
    const Tensor& mask = *mask_in;
    if (mask.scalar_type() != at::kBool && mask.scalar_type() != query.scalar_type() &&
        mask.scalar_type() != wide(query.scalar_type())) {
      return composite();
    }
    if (!at::is_expandable_to(mask.sym_sizes(), scores)) return composite();
  }
  OptionalTensor keep;
  if (dropout_p > 0) {
    keep = at::rand_symint(scores, query.options().dtype(at::kFloat)).ge(dropout_p);
  }
  // The operator has a number for its scale: a graph is for one size of the features.
  const auto of_features = [&] {
    const int64_t features = query.sym_size(-1).guard_int(__FILE__, __LINE__);
    return 1.0 / std::sqrt(static_cast<double>(features));
  };
  return Attention::apply(query, key, value, mask_in, keep, dropout_p, is_causal,
                          scale ? *scale : of_features());
}

const ops::Rules attention_rules([](ops::Registry& r) {
  r.all("aten::_native_multi_head_attention").autocast = ops::Autocast::Narrow;
});

// The second one serves inference mode, where tensors carry no autograd key.
TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) {
  m.impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
}
TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("scaled_dot_product_attention", TORCH_FN(scaled_dot_product_attention));
}

}  // namespace
}  // namespace torch_xla::dispatch
