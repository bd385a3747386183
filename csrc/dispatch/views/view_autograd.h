// Gives autograd the functions that take views anew. On a device of type XLA PyTorch does not use
// strides for that, so each view carries a function that replays it. PyTorch's functions repeat the
// calls, which goes wrong after a call in place (t_, squeeze_) has turned a tensor; the functions
// here restore the tensor first. Views of tensors that need no gradient take less time here than in
// PyTorch's autograd kernels: one allocation, one kernel.
#pragma once

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/SmallVector.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>

#include "dispatch/calls/composite.h"
#include "lazy/tensor.h"
#include "util/error.h"

namespace torch_xla::dispatch {

namespace view_autograd {

using at::Tensor;
using torch::autograd::CreationMeta;
using torch::autograd::ViewFunc;
using torch::autograd::ViewInfo;
using SymInts = std::vector<c10::SymInt>;

// The type in which a view keeps an argument; visit_symbols() visits its numbers that may be
// symbols.
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

// Remembers the sizes and strides of the tensor that a view was taken of.
class Origin {
 public:
  explicit Origin(const Tensor& tensor) : tensor_(tensor.getIntrusivePtr()) {
    const lazy::TensorImpl* impl = lazy::as_lazy(tensor);
    if (impl == nullptr) return;  // sizes may be symbols
    geometry_ = impl->geometry();
    offset_ = impl->storage_offset();
  }

  // Returns `base`, which is the tensor or stands for it, with the sizes and strides that the
  // tensor had, if a call in place has changed them.
  Tensor restored(const Tensor& base) const {
    if (geometry_ == nullptr || !lazy::is_lazy(base) || is_alike(base)) return base;
    const auto tensor = tensor_.lock();
    // The base has other strides, but the tensor has not changed.
    if (tensor != nullptr && is_alike(Tensor(tensor))) return base;
    const int64_t moved = tensor == nullptr ? 0 : offset_ - tensor->storage_offset();
    return base.as_strided(geometry_->sizes, geometry_->strides, base.storage_offset() + moved);
  }

 private:
  bool is_alike(const Tensor& t) const {
    return t.sizes() == geometry_->sizes && t.strides() == geometry_->strides;
  }

  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> tensor_;
  const lazy::Geometry* geometry_ = nullptr;
  int64_t offset_ = 0;
};

// Replays a call of the view operator `Op` on another base.
template <class Op, class... Args>
class Replay final : public ViewFunc {
 public:
  explicit Replay(Origin origin, const Args&... arguments)
      : origin_(std::move(origin)), kept_(keep(arguments)...) {}

  Tensor operator()(const Tensor& base) const override {
    const Tensor from = origin_.restored(base);
    return std::apply([&](const auto&... kept) { return Op::call(from, kept...); }, kept_);
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

  Origin origin_;
  std::tuple<Kept<Args>...> kept_;
};

// Wraps another function that replays a view.
template <class Derived>
class Around : public ViewFunc {
 public:
  explicit Around(std::unique_ptr<ViewFunc> replay) : replay_(std::move(replay)) {}

  SymInts get_symints() const override { return replay_->get_symints(); }
  size_t num_symints() const override { return replay_->num_symints(); }
  std::vector<Tensor> get_tensors() const override { return replay_->get_tensors(); }
  size_t num_tensors() const override { return replay_->num_tensors(); }
  std::unique_ptr<ViewFunc> clone_and_set(
      std::optional<SymInts> symbols, std::optional<std::vector<Tensor>> tensors) const override {
    auto clone = std::make_unique<Derived>(static_cast<const Derived&>(*this));
    clone->replay_ = replay_->clone_and_set(std::move(symbols), std::move(tensors));
    return clone;
  }

 protected:
  Around(const Around&) {}

  std::unique_ptr<ViewFunc> replay_;
};

// Wraps PyTorch's function that replays a view of `origin`.
class OfOrigin final : public Around<OfOrigin> {
 public:
  OfOrigin(Origin origin, std::unique_ptr<ViewFunc> replay)
      : Around(std::move(replay)), origin_(std::move(origin)) {}

  Tensor operator()(const Tensor& base) const override {
    return (*replay_)(origin_.restored(base));
  }

 private:
  Origin origin_;
};

// Replays a view that was turned in place after it was taken.
class Turned final : public Around<Turned> {
 public:
  using Around::Around;

  // Turns the view to these sizes and strides, `moved` elements further in memory.
  void turn(const lazy::Geometry* geometry, int64_t moved) {
    geometry_ = geometry;
    moved_ += moved;
  }

  Tensor operator()(const Tensor& base) const override {
    const Tensor view = (*replay_)(base);
    return view.as_strided(geometry_->sizes, geometry_->strides, view.storage_offset() + moved_);
  }

 private:
  const lazy::Geometry* geometry_ = nullptr;
  int64_t moved_ = 0;
};

inline Tensor no_inverse(const Tensor&) {
  util::fail(util::ErrorKind::NotImplemented,
             "_rev_view_func_unsafe: a view of an xla tensor cannot be undone.");
}

inline CreationMeta creation_meta() {
  if (c10::InferenceMode::is_enabled()) return CreationMeta::INFERENCE_MODE;
  return at::GradMode::is_enabled() ? CreationMeta::DEFAULT : CreationMeta::NO_GRAD_MODE;
}

// Calls `change` with autograd's records of a view that hold a function to replay it. PyTorch
// offers no way to change them; the const_cast is sound, since the objects are no constants.
template <class Change>
void change_replay(const Tensor& view, const Change& change) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(view);
  if (meta == nullptr) return;
  const auto one = [&](const ViewInfo& info) {
    if (info.has_view_fn()) change(const_cast<ViewInfo&>(info));
  };
  if (meta->has_bw_view()) one(meta->get_backward_view());
  if (meta->has_fw_view() && !meta->shared_view_info()) one(meta->get_forward_view());
}

template <class Op, class Schema = typename Op::schema>
struct AnyView;

template <class Op, class... Args>
struct AnyView<Op, Tensor(const Tensor&, Args...)> {
  static Tensor call(c10::DispatchKeySet keys, const Tensor& self, Args... args) {
    // A view of a view begins with the replay of the first, which restores its origin already.
    const bool first = torch::autograd::impl::get_view_autograd_meta(self) == nullptr;
    Tensor view = by_pytorch<Op>(keys, self, args...);
    if (first && view.unsafeGetTensorImpl() != self.unsafeGetTensorImpl()) {
      change_replay(view, [&](ViewInfo& info) {
        info.view_fn_ = std::make_unique<OfOrigin>(Origin(self), std::move(info.view_fn_));
      });
    }
    return view;
  }
};

// `InPlace` changes sizes and strides of a tensor, which may be a view.
template <class InPlace, class Schema = typename InPlace::schema>
struct TurnedInPlace;

template <class InPlace, class Self, class... Args>
struct TurnedInPlace<InPlace, Self(Self, Args...)> {
  static Self call(c10::DispatchKeySet keys, Self self, Args... args) {
    const lazy::TensorImpl* impl = lazy::as_lazy(self);
    const int64_t offset = impl == nullptr ? 0 : impl->storage_offset();
    by_pytorch<InPlace>(keys, self, args...);
    if (impl == nullptr) return self;
    change_replay(self, [&](ViewInfo& info) {
      auto* turned = dynamic_cast<Turned*>(info.view_fn_.get());
      if (turned == nullptr) {
        auto replay = std::make_unique<Turned>(std::move(info.view_fn_));
        turned = replay.get();
        info.view_fn_ = std::move(replay);
      }
      turned->turn(impl->geometry(), impl->storage_offset() - offset);
    });
    return self;
  }
};

template <class Op, class Schema = typename Op::schema>
struct ViewAutograd;

template <class Op, class... Args>
struct ViewAutograd<Op, Tensor(const Tensor&, Args...)> {
  static Tensor call(c10::DispatchKeySet keys, const Tensor& self, Args... args) {
    if (self.requires_grad() || self._fw_grad(/*level=*/0).defined()) {
      return AnyView<Op>::call(keys, self, args...);
    }
    Tensor view;
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      view = Op::redispatch(keys & c10::after_ADInplaceOrView_keyset, self, args...);
    }
    return torch::autograd::as_view(self, view, /*is_bw_differentiable=*/true,
                                    /*is_fw_differentiable=*/true,
                                    std::make_unique<Replay<Op, Args...>>(Origin(self), args...),
                                    no_inverse, creation_meta());
  }
};

}  // namespace view_autograd
}  // namespace torch_xla::dispatch
