// linear on xla. PyTorch's gradient of it keeps input and weight, whichever is wanted; here a
// tensor that no gradient needs may be written before backward, as on the CPU.
#include <memory>
#include <type_traits>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/TensorUtils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <torch/csrc/autograd/FunctionsManual.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/library.h>

#include "dispatch/calls/autograd_node.h"
#include "dispatch/calls/composite.h"
#include "ops/rules.h"

namespace torch_xla::dispatch {
namespace {

using at::Tensor;
using torch::autograd::SavedVariable;

// PyTorch's product of a stack of matrices and one takes the stack as one matrix: of an input that
// has no such view it keeps a copy, and the input may be written before backward.
bool is_copied(const Tensor& input) {
  if (input.dim() < 3 || input.sym_numel() == 0) return false;
  const c10::SymInt columns = input.sym_size(-1);  // of a graph's dynamic shapes no number
  const std::vector<c10::SymInt> matrix = {input.sym_numel() / columns, columns};
  return !at::detail::computeStride(input.sym_sizes(), input.sym_strides(), matrix).has_value();
}

// PyTorch's own node. Of what no gradient needs it takes the shape alone, and an alias that counts
// writes by itself does for that.
auto gradient_of(const Tensor& input, const Tensor& weight, const Tensor& bias) {
  const auto node = new_node<torch::autograd::generated::LinearBackward0>();
  node->set_next_edges(torch::autograd::collect_next_edges(input, weight, bias));
  const auto saved = [](const Tensor& t, bool needed) {
    return SavedVariable(needed ? t : t.variable_data(), /*is_output=*/false);
  };
  const bool keeps_input = weight.requires_grad();
  node->input_ = saved(keeps_input && is_copied(input) ? input.clone() : input, keeps_input);
  node->weight_ = saved(weight, input.requires_grad());
  return node;
}

Tensor linear(c10::DispatchKeySet keys, const Tensor& input, const Tensor& weight,
              const std::optional<Tensor>& bias) {
  const Tensor shift = bias.value_or(Tensor());
  // linear_backward takes weights of two dimensions only, and its own gradient no complex ones.
  if (weight.dim() == 1 || weight.is_complex()) {
    const Tensor product = at::matmul(input, weight.dim() == 1 ? weight : weight.t());
    return shift.defined() ? product + shift : product;
  }
  if (torch::autograd::isFwGradDefined(input) || torch::autograd::isFwGradDefined(weight) ||
      torch::autograd::isFwGradDefined(shift)) {
    return by_pytorch<at::_ops::linear>(keys, input, weight, bias);
  }
  const auto product = [&] {
    const at::AutoDispatchBelowADInplaceOrView below;
    return at::_ops::linear::redispatch(keys & c10::after_autograd_keyset, input, weight, bias);
  };
  if (!torch::autograd::compute_requires_grad(input, weight, shift)) return product();
  const auto node = gradient_of(input, weight, shift);
  const Tensor result = product();
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace

const ops::Rules linear_rules([](ops::Registry& r) {
  r.add("aten::linear", ops::rules::linear).on_cpu = ops::rules::linear_on_host;
});

TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) { m.impl("linear", TORCH_FN(linear)); }

}  // namespace torch_xla::dispatch
