// linear on xla, whose gradients keep only what they need: with an input or a weight that needs no
// gradient the other may be written before backward, as on the CPU.
#include <ATen/TensorOperators.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/linear_backward.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "dispatch/composite.h"

namespace torch_xla::dispatch {
namespace {

using at::Tensor;
using OptionalTensor = std::optional<Tensor>;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Of an input or of a weight, not both; and of a bias.
struct OneSidedLinear : torch::autograd::Function<OneSidedLinear> {
  static Tensor forward(AutogradContext* context, const Tensor& input, const Tensor& weight,
                        const OptionalTensor& bias) {
    const at::AutoDispatchBelowADInplaceOrView below;
    context->saved_data["of_bias"] = bias && bias->requires_grad();
    context->saved_data["input_sizes"] = input.sizes();
    context->saved_data["weight_sizes"] = weight.sizes();
    context->save_for_backward(
        {weight.requires_grad() ? input : Tensor(), input.requires_grad() ? weight : Tensor()});
    return at::linear(input, weight, bias);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const Tensor& grad = grads[0];
    if (!grad.defined()) return variable_list(3);
    const variable_list saved = context->get_saved_variables();
    // What was not saved gives its shape alone.
    const auto operand = [&](const Tensor& t, const char* sizes) {
      return t.defined() ? t : at::empty(context->saved_data[sizes].toIntVector(), grad.options());
    };
    const bool of_weight = context->needs_input_grad(1);
    const bool of_bias = context->saved_data["of_bias"].toBool();
    auto [input, weight, bias] = at::linear_backward(
        operand(saved[0], "input_sizes"), grad, operand(saved[1], "weight_sizes"),
        {context->needs_input_grad(0), of_weight, of_bias});
    // It gives the last two together.
    return {input, of_weight ? weight : Tensor(), of_bias ? bias : Tensor()};
  }
};

// A weight for a single result: linear_backward knows matrices only.
Tensor products(const Tensor& input, const Tensor& weight, const OptionalTensor& bias) {
  const Tensor result = at::matmul(input, weight);
  return bias && bias->defined() ? result + *bias : result;
}

Tensor linear(const Tensor& input, const Tensor& weight, const OptionalTensor& bias) {
  if (weight.dim() == 1) return products(input, weight, bias);
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::linear", "");
  const bool of_input = wants_own_gradient(input), of_weight = wants_own_gradient(weight);
  const bool of_bias = bias && bias->defined() && wants_own_gradient(*bias);
  if ((of_input && of_weight) || !(of_input || of_weight || of_bias)) {
    return by_pytorch(op, input, weight, bias);
  }
  return OneSidedLinear::apply(input, weight, bias);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) { m.impl("linear", TORCH_FN(linear)); }

}  // namespace torch_xla::dispatch
