// Views of tensors that need no gradient, at less than what PyTorch's autograd kernels take for
// them. A device of type XLA cannot replay a view by its strides, so each view carries a function
// that replays it: here it is one allocation, and the kernels above the backend are one.
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/library.h>

#include "dispatch/composite.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using at::Tensor;
using torch::autograd::CreationMeta;
using torch::autograd::ViewFunc;
using SymInts = std::vector<c10::SymInt>;

// An argument as a view keeps it, and its numbers that may be symbols.
template <class T>
using Kept = std::conditional_t<
    std::is_same_v<T, c10::SymIntArrayRef>, c10::SmallVector<c10::SymInt, 5>,
    std::conditional_t<std::is_same_v<T, at::IntArrayRef>, c10::SmallVector<int64_t, 5>, T>>;

template <class T>
Kept<T> keep(const T& argument) {
  if constexpr (std::is_same_v<Kept<T>, T>) {
    return argument;
  } else {
    return Kept<T>(argument.begin(), argument.end());
  }
}

template <class T, class Visit>
void visit_symbols(T& kept, const Visit& visit) {
  using Value = std::remove_const_t<T>;
  if constexpr (std::is_same_v<Value, c10::SymInt>) {
    visit(kept);
  } else if constexpr (std::is_same_v<Value, std::optional<c10::SymInt>>) {
    if (kept) visit(*kept);
  } else if constexpr (std::is_same_v<Value, Kept<c10::SymIntArrayRef>>) {
    for (auto& element : kept) visit(element);
  }
}

// Replays a call of the view operator `Op` on another base.
template <class Op, class... Args>
class Replay final : public ViewFunc {
 public:
  explicit Replay(const Args&... arguments) : kept_(keep(arguments)...) {}

  Tensor operator()(const Tensor& base) const override {
    return std::apply([&](const auto&... kept) { return Op::call(base, kept...); }, kept_);
  }
  SymInts get_symints() const override {
    SymInts symbols;
    for_each_symbol(kept_, [&](const c10::SymInt& s) { symbols.push_back(s); });
    return symbols;
  }
  size_t num_symints() const override {
    size_t count = 0;
    for_each_symbol(kept_, [&](const c10::SymInt&) { ++count; });
    return count;
  }
  std::unique_ptr<ViewFunc> clone_and_set(std::optional<SymInts> symbols,
                                          std::optional<std::vector<Tensor>>) const override {
    auto clone = std::make_unique<Replay>(*this);
    if (symbols) clone->set_symints(std::move(*symbols));
    return clone;
  }

 protected:
  void set_symints(SymInts symbols) override {
    TORCH_INTERNAL_ASSERT(symbols.size() == num_symints());
    size_t next = 0;
    for_each_symbol(kept_, [&](c10::SymInt& s) { s = symbols[next++]; });
  }

 private:
  template <class Tuple, class Visit>
  static void for_each_symbol(Tuple& kept, const Visit& visit) {
    std::apply([&](auto&... k) { (visit_symbols(k, visit), ...); }, kept);
  }

  std::tuple<Kept<Args>...> kept_;
};

Tensor no_inverse(const Tensor&) {
  util::fail(util::ErrorKind::NotImplemented,
             "_rev_view_func_unsafe: a view of an xla tensor cannot be undone.");
}

CreationMeta creation_meta() {
  if (c10::InferenceMode::is_enabled()) return CreationMeta::INFERENCE_MODE;
  return at::GradMode::is_enabled() ? CreationMeta::DEFAULT : CreationMeta::NO_GRAD_MODE;
}

template <class Op, class Schema = typename Op::schema>
struct ViewAutograd;

template <class Op, class... Args>
struct ViewAutograd<Op, Tensor(const Tensor&, Args...)> {
  static Tensor call(c10::DispatchKeySet keys, const Tensor& self, Args... args) {
    if (self.requires_grad() || self._fw_grad(/*level=*/0).defined()) {
      return by_pytorch<Op>(keys, self, args...);
    }
    Tensor view;
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      view = Op::redispatch(keys & c10::after_ADInplaceOrView_keyset, self, args...);
    }
    return torch::autograd::as_view(self, view, /*is_bw_differentiable=*/true,
                                    /*is_fw_differentiable=*/true,
                                    std::make_unique<Replay<Op, Args...>>(args...), no_inverse,
                                    creation_meta());
  }
};

TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) {
  m.impl("expand", ViewAutograd<at::_ops::expand>::call);
  m.impl("permute", ViewAutograd<at::_ops::permute>::call);
  m.impl("select.int", ViewAutograd<at::_ops::select_int>::call);
  m.impl("slice.Tensor", ViewAutograd<at::_ops::slice_Tensor>::call);
  m.impl("transpose.int", ViewAutograd<at::_ops::transpose_int>::call);
  m.impl("unsqueeze", ViewAutograd<at::_ops::unsqueeze>::call);
  m.impl("view", ViewAutograd<at::_ops::view>::call);
}

}  // namespace
}  // namespace torch_xla::dispatch
