#include "dispatch/view_kernel.h"

#include "dispatch/call.h"
#include "dispatch/recorder.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Argument;
using lazy::Geometry;
using lazy::Signature;
using lazy::TensorImpl;
using torch::jit::Stack;

constexpr const char* kViews[] = {
    "alias", "detach", "view", "_reshape_alias", "permute", "transpose.int", "t", "select.int",
    "slice.Tensor", "diagonal", "expand", "squeeze", "squeeze.dim", "squeeze.dims", "unsqueeze",
    "unfold", "view.dtype", "view_as_real", "view_as_complex",
    // Values, not bits on the tensor that every kernel would have to look at.
    "_conj", "_neg_view"};

// In-place forms and the views that they take.
constexpr std::pair<const char*, const char*> kInplaceViews[] = {
    {"t_", "t"},
    {"transpose_", "transpose.int"},
    {"squeeze_", "squeeze"},
    {"squeeze_.dim", "squeeze.dim"},
    {"squeeze_.dims", "squeeze.dims"},
    {"unsqueeze_", "unsqueeze"},
};

c10::OperatorHandle find(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      ("aten::" + name.substr(0, dot)).c_str(),
      dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

c10::intrusive_ptr<c10::StorageImpl> storage_of(const TensorImpl& impl) {
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl.storage().unsafeGetStorageImpl());
}

class InplaceViewKernel final : public c10::OperatorKernel {
 public:
  explicit InplaceViewKernel(const c10::OperatorHandle& view) : view_(view) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
    const size_t count = op.schema().arguments().size();
    const at::Tensor self = (*stack)[stack->size() - count].toTensor();
    view_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::XLA), stack);
    const at::Tensor view = stack->back().toTensor();
    TensorImpl* target = lazy::as_lazy(self);
    TensorImpl* source = lazy::as_lazy(view);
    TXLA_CHECK(target != nullptr && source != nullptr, op.schema().name(),
               ": expected an xla tensor.");
    target->assign(storage_of(*source), source->geometry(), source->storage_offset(),
                   source->view());
    stack->back() = self;
  }

 private:
  c10::OperatorHandle view_;
};

// The storage's value in the order of memory: dimensions by falling stride.
c10::intrusive_ptr<lazy::View> memory_order(const Geometry& base, const Geometry** physical) {
  *physical = lazy::intern_contiguous(base.dtype, base.sizes);
  if (base.contiguous) return {};
  std::vector<int64_t> order(base.sizes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return base.strides[a] > base.strides[b]; });
  std::vector<int64_t> sizes;
  for (const int64_t d : order) sizes.push_back(base.sizes[d]);
  *physical = lazy::intern_contiguous(base.dtype, sizes);
  // Memory with holes or overlaps has no such order.
  TXLA_CHECK(base.storage_elements() == base.numel,
             "as_strided: expected a base that fills its memory, got strides with gaps. "
             "Call contiguous() on the base first.");
  auto signature = c10::make_intrusive<Signature>();
  static const auto permute = find_operator({"aten::permute", ""});
  signature->op = permute.get();
  util::Hasher h;
  h.add_bytes("permute").add(base.hash);
  for (const int64_t d : order) h.add(static_cast<uint64_t>(d));
  signature->key = h.finish();
  signature->arguments.resize(2);
  signature->arguments[0].kind = Argument::Kind::Tensor;
  signature->arguments[1].value = order;
  signature->operands.push_back({&base, false, -1});
  signature->outputs.push_back(*physical);
  return c10::make_intrusive<lazy::View>(c10::intrusive_ptr<lazy::View>(), std::move(signature), 0);
}

}  // namespace

ViewKernel::ViewKernel(const c10::OperatorHandle& op)
    : op_(find_operator(op.operator_name())),
      meta_(op),
      num_arguments_(op.schema().arguments().size()),
      is_identity_(op_->name == "aten::alias" || op_->name == "aten::detach") {
  util::Hasher h;
  h.add_bytes(op_->name);
  op_hash_ = h.finish().low;
}

ViewKernel::Entry ViewKernel::make_entry(const TensorImpl& self, const Stack& stack, size_t base,
                                         const util::Hash128& key) const {
  auto signature = c10::make_intrusive<Signature>();
  signature->op = op_.get();
  signature->key = key;
  signature->operands.push_back({self.geometry(), false, -1});
  Stack meta;
  for (size_t i = 0; i < num_arguments_; ++i) {
    const c10::IValue& v = stack[base + i];
    Argument a;
    if (i == 0) {
      a.kind = Argument::Kind::Tensor;
      a.count = 1;
      meta.emplace_back(meta_tensor(*self.geometry(), false));
    } else {
      a.kind = v.isNone() ? Argument::Kind::None : Argument::Kind::Static;
      a.value = v;
      meta.push_back(v);
    }
    signature->arguments.push_back(std::move(a));
  }
  meta_.call(&meta);
  const at::Tensor& result = meta[0].toTensor();
  const Geometry* geometry = lazy::intern(result.scalar_type(), result.sizes(), result.strides());
  signature->outputs.push_back(geometry);
  return {std::move(signature), geometry, result.storage_offset()};
}

void ViewKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, Stack* stack) {
  const size_t base = stack->size() - num_arguments_;
  TensorImpl* self = lazy::as_lazy((*stack)[base].toTensor());
  if (self == nullptr) {
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    return;
  }
  at::Tensor result;
  if (is_identity_) {
    result = lazy::make_view(*self, self->view(), self->geometry(), self->storage_offset());
  } else {
    util::Hasher h;
    h.add(op_hash_).add(self->geometry()->hash.low);
    for (size_t i = 1; i < num_arguments_; ++i) {
      const c10::IValue& v = (*stack)[base + i];
      if (v.isInt()) {
        h.add(2).add(static_cast<uint64_t>(v.toInt()));
      } else if (v.isNone()) {
        h.add(1);
      } else if (v.isBool()) {
        h.add(3 + v.toBool());
      } else if (v.isIntList()) {
        const auto list = v.toListRef();
        h.add(5).add(list.size());
        for (const c10::IValue& e : list) h.add(static_cast<uint64_t>(e.toInt()));
      } else {
        util::fail(util::ErrorKind::Type, op_->name, ": expected plain integers, got ", v.tagKind(),
                   ". Symbolic shapes cannot be recorded.");
      }
    }
    const util::Hash128 key = h.finish();
    const lazy::GraphLock lock;
    auto it = memo_.find(key);
    if (it == memo_.end()) {
      Entry entry = make_entry(*self, *stack, base, key);
      // Attributes that never repeat must not fill memory; views in use keep what they need.
      if (memo_.size() > 16384) memo_.clear();
      it = memo_.emplace(key, std::move(entry)).first;
    }
    const Entry& entry = it->second;
    result =
        lazy::make_view(*self, c10::make_intrusive<lazy::View>(self->view(), entry.signature, 0),
                        entry.geometry, self->storage_offset() + entry.offset);
  }
  torch::jit::drop(*stack, num_arguments_);
  stack->emplace_back(std::move(result));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> storage_offset) {
  TensorImpl* impl = lazy::as_lazy(self);
  TXLA_CHECK(impl != nullptr, "as_strided: expected an xla tensor, got one on ",
             self.device().str(), ".");
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const auto strides = C10_AS_INTARRAYREF_SLOW(stride);
  TORCH_CHECK(sizes.size() == strides.size(), "mismatch in length of strides and shape");
  const int64_t offset =
      storage_offset ? storage_offset->guard_int(__FILE__, __LINE__) : impl->storage_offset();
  for (const int64_t s : strides) {
    TORCH_CHECK(
        s >= 0,
        "as_strided: Negative strides are not supported at the moment, got strides: ", strides);
  }
  const Geometry* geometry = lazy::intern(impl->geometry()->dtype, sizes, strides);
  const lazy::GraphLock lock;
  lazy::Storage& storage = impl->lazy_storage();
  const int64_t needed = geometry->numel == 0 ? 0 : offset + geometry->storage_elements();
  const int64_t available =
      static_cast<int64_t>(storage.nbytes() / c10::elementSize(geometry->dtype));
  TORCH_CHECK(needed <= available, "setStorage: sizes ", sizes, ", strides ", strides,
              ", storage offset ", offset, ", and itemsize ", c10::elementSize(geometry->dtype),
              " requiring a storage size of ", needed * c10::elementSize(geometry->dtype),
              " are out of bounds for storage of size ", storage.nbytes());
  const Geometry* physical = nullptr;
  c10::intrusive_ptr<lazy::View> parent = memory_order(storage.geometry(), &physical);
  if (physical->dtype != geometry->dtype) {
    util::fail(util::ErrorKind::NotImplemented,
               "as_strided: expected a base of the same dtype, got a view of dtype ",
               c10::toString(geometry->dtype), " over ", c10::toString(physical->dtype),
               ". Clone the view first.");
  }
  auto signature = c10::make_intrusive<Signature>();
  static const auto op = find_operator({"aten::as_strided", ""});
  signature->op = op.get();
  util::Hasher h;
  h.add_bytes("as_strided")
      .add(physical->hash)
      .add(geometry->hash)
      .add(static_cast<uint64_t>(offset));
  signature->key = h.finish();
  signature->arguments.resize(4);
  signature->arguments[0].kind = Argument::Kind::Tensor;
  signature->arguments[0].count = 1;
  signature->arguments[1].value = sizes;
  signature->arguments[2].value = strides;
  signature->arguments[3].value = offset;
  signature->operands.push_back({physical, false, -1});
  signature->outputs.push_back(geometry);
  return lazy::make_view(
      *impl, c10::make_intrusive<lazy::View>(std::move(parent), std::move(signature), 0), geometry,
      offset);
}

namespace {

const at::Tensor& as_strided_(const at::Tensor& self, c10::SymIntArrayRef size,
                              c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  const at::Tensor view = as_strided(self, size, stride, std::move(offset));
  TensorImpl* source = lazy::as_lazy(view);
  lazy::as_lazy(self)->assign(storage_of(*source), source->geometry(), source->storage_offset(),
                              source->view());
  return self;
}

at::Tensor& set_source_tensor(at::Tensor& self, const at::Tensor& source) {
  TensorImpl* target = lazy::as_lazy(self);
  TensorImpl* from = lazy::as_lazy(source);
  TXLA_CHECK(target != nullptr && from != nullptr, "set_: expected two xla tensors, got ",
             self.device().str(), " and ", source.device().str(),
             ". Move the source with .to('xla').");
  const lazy::GraphLock lock;
  target->assign(storage_of(*from), from->geometry(), from->storage_offset(), from->view());
  return self;
}

at::Tensor& set_source_storage(at::Tensor& self, c10::Storage source, c10::SymInt offset,
                               c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  TensorImpl* target = lazy::as_lazy(self);
  auto* storage = dynamic_cast<lazy::Storage*>(source.unsafeGetStorageImpl());
  TXLA_CHECK(target != nullptr && storage != nullptr,
             "set_: expected an xla tensor and an xla storage. Use Tensor.set_(other_xla_tensor).");
  const lazy::GraphLock lock;
  const at::Tensor whole = at::Tensor(c10::make_intrusive<TensorImpl>(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(source.unsafeGetStorageImpl()),
      &storage->geometry(), 0, c10::intrusive_ptr<lazy::View>()));
  std::vector<c10::SymInt> strides = stride.vec();
  if (stride.empty() && !size.empty()) {
    for (const int64_t s :
         lazy::intern_contiguous(self.scalar_type(), C10_AS_INTARRAYREF_SLOW(size))->strides) {
      strides.emplace_back(s);
    }
  }
  const at::Tensor view = as_strided(whole, size, strides, std::move(offset));
  TensorImpl* from = lazy::as_lazy(view);
  target->assign(storage_of(*from), from->geometry(), from->storage_offset(), from->view());
  return self;
}

at::Tensor& set_empty(at::Tensor& self) {
  TensorImpl* target = lazy::as_lazy(self);
  TXLA_CHECK(target != nullptr, "set_: expected an xla tensor.");
  const int device = target->device_index();
  const Geometry* g = lazy::intern_contiguous(self.scalar_type(), {0});
  const lazy::GraphLock lock;
  target->assign(c10::make_intrusive<lazy::Storage>(g, device, lazy::Value{}), g, 0, {});
  return self;
}

}  // namespace

void register_views(torch::Library& library) {
  for (const char* name : kViews) {
    library.impl(
        name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<ViewKernel>(find(name))));
  }
  for (const auto& [inplace, view] : kInplaceViews) {
    library.impl(inplace, torch::CppFunction::makeFromBoxedFunctor(
                              std::make_unique<InplaceViewKernel>(find(view))));
  }
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("as_strided_", TORCH_FN(as_strided_));
  library.impl("set_.source_Tensor", TORCH_FN(set_source_tensor));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_source_storage));
  library.impl("set_", TORCH_FN(set_empty));
}

}  // namespace torch_xla::dispatch
