#include "dispatch/meta.h"

#include <string_view>

#include <ATen/EmptyTensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace torch_xla::dispatch {
namespace {

// Access to two private members by explicit instantiation, which the language permits: the
// dispatcher keeps the shadowed kernels and has no public way to reach them.
template <class Tag, auto Member>
struct Grant {
  friend auto member(Tag) { return Member; }
};

struct OperatorDefTag {
  friend auto member(OperatorDefTag);
};
template struct Grant<OperatorDefTag, &c10::OperatorHandle::operatorDef_>;

struct KernelsTag {
  friend auto member(KernelsTag);
};
template struct Grant<KernelsTag, &c10::impl::OperatorEntry::kernels_>;

const c10::KernelFunction* shadowed_meta_kernel(const c10::OperatorHandle& op) {
  // The C++ kernel of this one answers with shape [0], which its CPU kernel corrects.
  if (op.schema().name() == "aten::isin" && op.schema().overload_name() == "Scalar_Tensor") {
    return nullptr;
  }
  const auto& kernels = (op.*member(OperatorDefTag{}))->op.*member(KernelsTag{});
  const auto it = kernels.find(c10::DispatchKey::Meta);
  if (it == kernels.end()) return nullptr;
  for (const auto& annotated : it->second) {
    // A kernel that cannot be called boxed is of no use here.
    if (annotated.debug.find("RegisterMeta") != std::string::npos && annotated.kernel.isValid()) {
      return &annotated.kernel;
    }
  }
  return nullptr;
}

// Below autograd. (Excluding XLA itself would exclude every dense backend.)
const c10::DispatchKeySet kExcluded =
    c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
    c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::Functionalize});

}  // namespace

at::Tensor meta_tensor(const lazy::Geometry& geometry, bool wrapped_number) {
  at::Tensor t = at::detail::empty_strided_meta(geometry.sizes, geometry.strides, geometry.dtype);
  if (wrapped_number) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

MetaKernel::MetaKernel(const c10::OperatorHandle& op)
    : op_(op), native_(shadowed_meta_kernel(op)) {}

void MetaKernel::call(torch::jit::Stack* stack) const {
  const c10::impl::ExcludeDispatchKeyGuard exclude(kExcluded);
  if (native_ != nullptr) {
    native_->callBoxed(op_, c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  } else {
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  }
}

}  // namespace torch_xla::dispatch
