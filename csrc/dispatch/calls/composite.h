// Helpers for operators that this project differentiates itself (RNN layers, attention, products)
// or whose PyTorch kernel it hides (views, linear).
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/PythonDispatcherTLS.h>

namespace torch_xla::dispatch {

inline std::optional<at::Tensor> given(const at::Tensor& t) {
  return t.defined() ? std::optional<at::Tensor>(t) : std::nullopt;
}

// Returns whether a transform of torch.func runs: C++ autograd functions do not work under it,
// PyTorch's composite operators do.
bool functorch_is_active();

// Returns whether a gradient is wanted that a C++ autograd function can give; transforms of
// torch.func and forward-mode derivatives need PyTorch's formulas.
bool wants_own_gradient(const at::Tensor& t);

// Calls PyTorch's own autograd kernel of the operator Op, which a kernel for this backend hides.
template <class Op, class... Arguments>
at::Tensor by_pytorch(c10::DispatchKeySet keys, Arguments&&... arguments) {
  if (c10::impl::PythonDispatcherTLS::get_state() != nullptr) {
    // The Python dispatcher takes the keys anew from the arguments, and would come back here.
    static const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    torch::jit::Stack stack;
    (stack.emplace_back(arguments), ...);
    op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, stack);
    return stack[0].toTensor();
  }
  // The key of other backends reaches PyTorch's kernel; composite operators stay composite there.
  return Op::redispatch(
      keys.remove(c10::DispatchKey::AutogradFunctionality).add(c10::DispatchKey::AutogradOther),
      std::forward<Arguments>(arguments)...);
}

// Computes gradients that can be differentiated again: of `formula`, which calls differentiable
// operators on `inputs`, by those inputs that require gradients. results[i] belongs to inputs[i].
using Tensors = std::vector<at::Tensor>;
void differentiable_gradients(const std::function<Tensors(const Tensors&)>& formula,
                              const Tensors& inputs, const Tensors& grads, Tensors& results);

}  // namespace torch_xla::dispatch
