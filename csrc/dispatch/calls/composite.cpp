#include "dispatch/calls/composite.h"

#include <ATen/FuncTorchTLS.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/alias.h>
#include <torch/csrc/autograd/autograd.h>

namespace torch_xla::dispatch {

bool functorch_is_active() {
  const auto& state = at::functorch::functorchTLSAccessor();
  if (state == nullptr) return false;
  try {
    state->checkSupportsCppAutogradFunction();
    return false;
  } catch (const c10::Error&) {
    return true;
  }
}

bool wants_own_gradient(const at::Tensor& t) {
  if (!t.requires_grad() || !at::GradMode::is_enabled()) return false;
  return !functorch_is_active() && !t._fw_grad(/*level=*/0).defined();
}

void differentiable_gradients(const std::function<Tensors(const Tensors&)>& formula,
                              const Tensors& inputs, const Tensors& grads, Tensors& results) {
  // The formula takes aliases: hooks of the inputs are for the gradients that leave the whole
  // formula.
  Tensors aliases = inputs, wanted;
  std::vector<size_t> positions;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !inputs[i].requires_grad()) continue;
    aliases[i] = at::alias(inputs[i]);
    wanted.push_back(aliases[i]);
    positions.push_back(i);
  }
  const auto found = torch::autograd::grad(formula(aliases), wanted, grads, /*retain_graph=*/true,
                                           /*create_graph=*/true, /*allow_unused=*/true);
  for (size_t i = 0; i < found.size(); ++i) results.at(positions[i]) = found[i];
}

}  // namespace torch_xla::dispatch
