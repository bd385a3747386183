// What the operators that this project differentiates itself (RNN layers, attention) have in
// common.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch_xla::dispatch {

inline std::optional<at::Tensor> given(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

// Whether a transform of torch.func runs: C++ autograd functions do not work under it, PyTorch's
// composite operators do.
bool functorch_is_active();

// Gradients that can be differentiated again: of `outputs`, computed from `inputs` by
// differentiable operators, with respect to those inputs that require it. results[i] belongs to
// inputs[i].
void differentiable_gradients(const std::vector<at::Tensor>& outputs,
                              const std::vector<at::Tensor>& grads,
                              const std::vector<at::Tensor>& inputs,
                              std::vector<at::Tensor>& results);

}  // namespace torch_xla::dispatch
