// ViewKernel, the kernel of view operators: its result shares the storage and holds the chain that
// reads it.
#pragma once

#include <memory>

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include "dispatch/calls/meta.h"
#include "dispatch/calls/plan.h"
#include "lazy/signature.h"
#include "lazy/tensor.h"
#include "util/memo.h"

namespace torch_xla::dispatch {

// Returns a view of `geometry` on the memory from element `offset` of the storage, whose dtype may
// be another.
at::Tensor window(lazy::Storage& storage, const lazy::Geometry* geometry, int64_t offset);

using ops::ViewKind;
inline bool joins(ViewKind kind) { return kind == ViewKind::Shape || kind == ViewKind::Order; }
inline bool is_computed(ViewKind kind) {
  return kind == ViewKind::Conjugated || kind == ViewKind::Negated;
}

// Joins `parent` and the step of the same kind after it into one step, or none.
c10::intrusive_ptr<lazy::View> joined(const lazy::View& parent, ViewKind kind,
                                      const lazy::Signature& step);

// Returns the nearest view, of `of` and those that it is taken of, that shows the same memory with
// the same geometry: null for the whole storage, nullopt where none near does.
std::optional<c10::intrusive_ptr<lazy::View>> seen_before(const lazy::TensorImpl& of,
                                                          const lazy::Geometry* geometry,
                                                          int64_t offset);

// Returns where the tensor begins in its storage, in elements of another dtype.
inline int64_t offset_as(const lazy::TensorImpl& tensor, at::ScalarType dtype) {
  const at::ScalarType from = tensor.geometry()->dtype;
  if (from == dtype) return tensor.storage_offset();
  return tensor.storage_offset() * static_cast<int64_t>(c10::elementSize(from)) /
         static_cast<int64_t>(c10::elementSize(dtype));
}

// One view operator. Arguments come unboxed: hashing integers costs less than boxing lists of them.
class ViewKernel {
 public:
  explicit ViewKernel(const c10::OperatorHandle& op);

  template <class... Args>
  at::Tensor operator()(const at::Tensor& self, const Args&... args) {
    lazy::TensorImpl* impl = lazy::as_lazy(self);
    if (impl == nullptr) return call_meta(self, {box(args)...});
    lazy::CallKey h(op_->hash);
    h.tensor(impl->geometry());
    (hash(h, args), ...);
    const util::Hash128 key = h.finish();
    KnownView& entry = recent(key);
    if (entry.key != key) entry = make_known(*impl, {box(args)...}, key);
    const int64_t offset = offset_as(*impl, entry.geometry->dtype) + entry.offset;
    const bool computes = is_computed(entry.kind);
    if (!computes) {
      if (auto seen = seen_before(*impl, entry.geometry, offset)) {
        return lazy::make_view(*impl, *std::move(seen), entry.geometry, offset);
      }
    }
    if (joins(entry.kind) && impl->view().defined() &&
        impl->view()->step()->op->traits->view.kind == entry.kind) {
      return lazy::make_view(*impl, joined(*impl->view(), entry.kind, *entry.signature),
                             entry.geometry, offset);
    }
    auto view = c10::make_intrusive<lazy::View>(impl->view(), entry.signature, 0,
                                                computes ? lazy::View::kComputed : offset);
    return lazy::make_view(*impl, std::move(view), entry.geometry, offset);
  }

 private:
  struct KnownView {
    util::Hash128 key;
    c10::intrusive_ptr<const lazy::Signature> signature;
    const lazy::Geometry* geometry = nullptr;
    int64_t offset = 0;  // relative to the input's
    ViewKind kind = ViewKind::Other;
  };
  // Returns the calling thread's slot for keys like this one, of all operators; needs no lock.
  static KnownView& recent(const util::Hash128& key);

  static void hash(lazy::CallKey& h, int64_t v) { h.fixed(v); }
  static void hash(lazy::CallKey& h, bool v) { h.fixed(v); }
  static void hash(lazy::CallKey& h, at::ScalarType v) { h.fixed(static_cast<int64_t>(v)); }
  static void hash(lazy::CallKey& h, const c10::SymInt& v) { h.fixed(plain(v)); }
  static void hash(lazy::CallKey& h, const std::optional<c10::SymInt>& v) {
    if (v) {
      hash(h, *v);
    } else {
      h.none();
    }
  }
  template <class Int>
  static void hash(lazy::CallKey& h, c10::ArrayRef<Int> list) {
    h.begin_list(list.size());
    for (const Int& v : list) hash(h, v);
  }

  template <class T>
  static c10::IValue box(const T& v) {
    return v;
  }
  static c10::IValue box(const c10::SymInt& v) { return plain(v); }
  static c10::IValue box(const std::optional<c10::SymInt>& v) {
    return v ? c10::IValue(plain(*v)) : c10::IValue();
  }
  static c10::IValue box(const c10::SymIntArrayRef& v) { return C10_AS_INTARRAYREF_SLOW(v); }

  // Returns the number; throws where it is a symbol without a value.
  static int64_t plain(const c10::SymInt& v) { return v.guard_int(__FILE__, __LINE__); }

  KnownView make_known(const lazy::TensorImpl& self, torch::jit::Stack arguments,
                       const util::Hash128& key);
  at::Tensor call_meta(const at::Tensor& self, torch::jit::Stack arguments) const;

  c10::OperatorHandle handle_;
  std::shared_ptr<const lazy::Operator> op_;
  MetaKernel meta_;
  util::Memo<KnownView, 16384> memo_;  // under the graph lock
};

// The kernel of a view operator's form in place.
class InplaceViewKernel final : public c10::OperatorKernel {
 public:
  explicit InplaceViewKernel(const c10::OperatorHandle& view) : view_(view) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack);

 private:
  c10::OperatorHandle view_;
};

// Makes a tensor as outside of inference mode, whatever it is a view of.
at::Tensor view_of(lazy::Storage& storage, const lazy::Geometry* geometry, int64_t offset,
                   c10::intrusive_ptr<lazy::View> view);
c10::intrusive_ptr<c10::StorageImpl> storage_of(const lazy::TensorImpl& impl);
// Returns the view that leads from the storage to a window of it.
c10::intrusive_ptr<lazy::View> window_view(lazy::Storage& storage, const lazy::Geometry* geometry,
                                           int64_t offset);

}  // namespace torch_xla::dispatch
