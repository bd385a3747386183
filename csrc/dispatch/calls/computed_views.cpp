#include "dispatch/calls/computed_views.h"

#include <ATen/ops/_conj.h>
#include <ATen/ops/_neg_view.h>
#include <ATen/ops/select.h>
#include <ATen/ops/view_as_real.h>
#include <torch/library.h>

#include "lazy/operator.h"
#include "ops/traits.h"

namespace torch_xla::dispatch {

using at::Tensor;

Computation computation_of(const lazy::TensorImpl& tensor) {
  Computation found;
  for (const lazy::View* v = tensor.view().get(); v != nullptr; v = v->parent().get()) {
    if (v->offset() != lazy::View::kComputed) continue;
    const bool conjugates = v->step()->op->traits->view.kind == ops::ViewKind::Conjugated;
    bool& turned = conjugates ? found.conjugates : found.negates;
    turned = !turned;
  }
  return found;
}

bool shows_memory(const lazy::TensorImpl& tensor) {
  lazy::Storage& storage = tensor.lazy_storage();
  return storage.has_value() && storage.geometry().contiguous &&
         storage.value().geometry().dtype == tensor.geometry()->dtype &&
         computation_of(tensor).is_nothing();
}

Tensor computed(Tensor view, const Computation& computation) {
  if (computation.conjugates) view = at::_conj(view);
  if (computation.negates) view = at::_neg_view(view);
  return view;
}

namespace {

Computation computation_of(const Tensor& self) {
  const lazy::TensorImpl* impl = lazy::as_lazy(self);
  return impl != nullptr ? dispatch::computation_of(*impl)
                         : Computation{self.is_conj(), self.is_neg()};
}

}  // namespace

void check_bits_of_memory(const Tensor& self, at::ScalarType dtype) {
  if (dtype == self.scalar_type()) return;
  const Computation computation = computation_of(self);
  TORCH_CHECK(!computation.conjugates,
              "torch.Tensor.view is not supported for conjugate view tensors when converting to a "
              "different dtype.");
  TORCH_CHECK(!computation.negates,
              "torch.Tensor.view is not supported for tensors with negative bit set when "
              "converting to a different dtype.");
}

void check_parts_of_memory(const Tensor& self) {
  TORCH_CHECK(!computation_of(self).conjugates,
              "view_as_real doesn't work on unresolved conjugated tensors.  To resolve the "
              "conjugate tensor so you can view it as real, use self.resolve_conj(); however, be "
              "warned that the resulting tensor will NOT alias the original.");
}

namespace {

Tensor resolve_conj(const Tensor& self) {
  return self.is_complex() && computation_of(self).conjugates ? self.clone() : self;
}
Tensor resolve_neg(const Tensor& self) {
  return computation_of(self).negates ? self.clone() : self;
}

// Both of a conjugated tensor are views of what it conjugates.
Tensor part(const Tensor& self, int64_t which, bool conjugates) {
  return at::select(at::view_as_real(conjugates ? self._conj() : self), -1, which);
}
Tensor real(const Tensor& self) {
  return self.is_complex() ? part(self, 0, computation_of(self).conjugates) : self;
}
Tensor imag(const Tensor& self) {
  TORCH_CHECK(self.is_complex(), "imag is not implemented for tensors with non-complex dtypes.");
  const bool conjugates = computation_of(self).conjugates;
  const Tensor found = part(self, 1, conjugates);
  return conjugates ? at::_neg_view(found) : found;
}

void register_parts(torch::Library& m) {
  m.impl("resolve_conj", TORCH_FN(resolve_conj));
  m.impl("resolve_neg", TORCH_FN(resolve_neg));
  m.impl("real", TORCH_FN(real));
  m.impl("imag", TORCH_FN(imag));
}

TORCH_LIBRARY_IMPL(aten, XLA, m) { register_parts(m); }
TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) { register_parts(m); }

}  // namespace
}  // namespace torch_xla::dispatch
