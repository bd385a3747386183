#include "dispatch/view_kernel.h"

#include <array>
#include <numeric>
#include <string_view>

#include "dispatch/call.h"
#include "dispatch/computed_views.h"
#include "dispatch/recorder.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::Signature;
using lazy::TensorImpl;
using torch::jit::Stack;

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

// A call with one operand.
c10::intrusive_ptr<const Signature> step_of(const lazy::Operator& op, const Geometry* operand,
                                            const Stack& arguments, const Geometry* result) {
  const lazy::GraphLock lock;
  lazy::SignatureBuilder builder(op);
  builder.tensor(operand);
  for (const c10::IValue& v : arguments) builder.fixed(v);
  builder.output(result);
  return lazy::intern(builder.build());
}

// The storage's value in the order of memory, dimensions by falling stride. Memory with gaps or
// overlaps has no such order: the value stays as it is, and is laid out by the lowering.
c10::intrusive_ptr<lazy::View> memory_order(const Geometry& base, const Geometry** physical) {
  *physical = &base;
  if (base.contiguous || base.storage_elements() != base.numel) return {};
  std::vector<int64_t> order(base.sizes.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int64_t>(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return base.strides[a] > base.strides[b]; });
  std::vector<int64_t> sizes;
  for (const int64_t d : order) sizes.push_back(base.sizes[d]);
  *physical = lazy::intern_contiguous(base.dtype, sizes);
  static const auto permute = find_operator({"aten::permute", ""});
  return c10::make_intrusive<lazy::View>(c10::intrusive_ptr<lazy::View>(),
                                         step_of(*permute, &base, {order}, *physical), 0, 0);
}

}  // namespace

ViewKernel::ViewKernel(const c10::OperatorHandle& op)
    : handle_(op), op_(find_operator(op.operator_name())), meta_(op) {}

at::Tensor ViewKernel::call_meta(const at::Tensor& self, Stack arguments) const {
  arguments.insert(arguments.begin(), self);
  handle_.callBoxedForDispatchKey(c10::DispatchKey::Meta, arguments);
  return arguments[0].toTensor();
}

ViewKernel::Entry& ViewKernel::recent(const util::Hash128& key) {
  static thread_local std::array<Entry, 256> entries;
  return entries[key.low % entries.size()];
}

ViewKernel::Entry ViewKernel::find_entry(const TensorImpl& self, Stack arguments,
                                         const util::Hash128& key) {
  const lazy::GraphLock lock;
  if (const Entry* known = memo_.find(key)) return *known;
  Stack results = {meta_tensor(*self.geometry(), false)};
  results.insert(results.end(), arguments.begin(), arguments.end());
  meta_.call(&results);
  const at::Tensor& result = results[0].toTensor();
  const Geometry* geometry = lazy::intern(result.scalar_type(), result.sizes(), result.strides());
  return memo_.add(key, {key, step_of(*op_, self.geometry(), arguments, geometry), geometry,
                         result.storage_offset(), view_kind(*op_)});
}

ViewKind view_kind(const lazy::Operator& op) {
  static const auto& kinds = *new std::unordered_map<std::string_view, ViewKind>{
      {"aten::view", ViewKind::Shape},          {"aten::_reshape_alias", ViewKind::Shape},
      {"aten::squeeze", ViewKind::Shape},       {"aten::squeeze.dim", ViewKind::Shape},
      {"aten::squeeze.dims", ViewKind::Shape},  {"aten::unsqueeze", ViewKind::Shape},
      {"aten::transpose.int", ViewKind::Order}, {"aten::t", ViewKind::Order},
      {"aten::permute", ViewKind::Order},       {"aten::_conj", ViewKind::Computed},
      {"aten::_neg_view", ViewKind::Computed},
  };
  const auto it = kinds.find(op.name);
  return it == kinds.end() ? ViewKind::Other : it->second;
}

namespace {

int64_t wrap(int64_t dim, size_t rank) { return dim < 0 ? dim + static_cast<int64_t>(rank) : dim; }

// The dimension of its input that each dimension of a reordering view is.
std::vector<int64_t> order_of(const Signature& step) {
  const size_t rank = step.outputs[0]->sizes.size();
  std::vector<int64_t> order(rank);
  std::iota(order.begin(), order.end(), 0);
  if (step.op->name == "aten::permute") {
    order = step.arguments[1].value.toIntVector();
    for (int64_t& dim : order) dim = wrap(dim, rank);
  } else if (step.op->name == "aten::t") {
    if (rank == 2) std::swap(order[0], order[1]);
  } else if (rank > 0) {
    std::swap(order[wrap(step.arguments[1].value.toInt(), rank)],
              order[wrap(step.arguments[2].value.toInt(), rank)]);
  }
  return order;
}

}  // namespace

c10::intrusive_ptr<lazy::View> joined(const lazy::View& parent, ViewKind kind,
                                      const Signature& step) {
  const Geometry* from = parent.step()->operands[0].geometry;
  const Geometry* to = step.outputs[0];
  std::vector<int64_t> argument = to->sizes;
  bool same = from == to;
  if (kind == ViewKind::Order) {
    const std::vector<int64_t> first = order_of(*parent.step());
    argument = order_of(step);
    for (int64_t& dim : argument) dim = first[dim];
    same = same && std::is_sorted(argument.begin(), argument.end());
  }
  if (same) return parent.parent();
  static const auto view = find_operator({"aten::view", ""});
  static const auto permute = find_operator({"aten::permute", ""});
  const auto& op = kind == ViewKind::Order ? permute : view;
  return c10::make_intrusive<lazy::View>(parent.parent(), step_of(*op, from, {argument}, to), 0,
                                         parent.offset());
}

std::optional<c10::intrusive_ptr<lazy::View>> seen_before(const TensorImpl& of,
                                                          const Geometry* geometry,
                                                          int64_t offset) {
  constexpr int kNear = 8;
  const c10::intrusive_ptr<lazy::View>* view = &of.view();
  for (int i = 0; i < kNear && view->defined(); ++i) {
    if ((*view)->offset() == lazy::View::kComputed) return std::nullopt;
    if ((*view)->geometry() == geometry && (*view)->offset() == offset) return *view;
    view = &(*view)->parent();
  }
  const bool is_whole =
      !view->defined() && offset == 0 && &of.lazy_storage().geometry() == geometry;
  return is_whole ? std::optional(c10::intrusive_ptr<lazy::View>()) : std::nullopt;
}

void check_window(const Geometry& window, int64_t offset, size_t storage_bytes) {
  const size_t itemsize = c10::elementSize(window.dtype);
  const size_t needed =
      window.numel == 0 ? 0 : static_cast<size_t>(offset + window.storage_elements()) * itemsize;
  TORCH_CHECK(needed <= storage_bytes, "setStorage: sizes ", c10::IntArrayRef(window.sizes),
              ", strides ", c10::IntArrayRef(window.strides), ", storage offset ", offset,
              ", and itemsize ", itemsize, " requiring a storage size of ", needed,
              " are out of bounds for storage of size ", storage_bytes);
}

namespace {

// A tensor like others outside of inference mode, whatever it is a view of.
at::Tensor view_of(lazy::Storage& storage, const Geometry* geometry, int64_t offset,
                   c10::intrusive_ptr<lazy::View> view) {
  return at::Tensor(
      c10::make_intrusive<TensorImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage),
                                      geometry, offset, std::move(view)));
}

// What leads from the storage to a window of it.
c10::intrusive_ptr<lazy::View> window_view(lazy::Storage& storage, const Geometry* geometry,
                                           int64_t offset) {
  const lazy::GraphLock lock;
  check_window(*geometry, offset, storage.nbytes());
  const Geometry* physical = nullptr;
  c10::intrusive_ptr<lazy::View> parent = memory_order(storage.geometry(), &physical);
  if (physical->dtype != geometry->dtype) {
    // Other elements over the same bytes, but for a rest that is too short for one.
    const size_t from = c10::elementSize(physical->dtype), to = c10::elementSize(geometry->dtype);
    const size_t used = storage.nbytes() / std::max(from, to) * std::max(from, to);
    const at::Tensor bytes =
        window(storage,
               lazy::intern_contiguous(physical->dtype, {static_cast<int64_t>(used / from)}), 0)
            .view(geometry->dtype);
    parent = lazy::as_lazy(bytes)->view();
    physical = lazy::as_lazy(bytes)->geometry();
  }
  static const auto op = find_operator({"aten::as_strided", ""});
  auto step = step_of(*op, physical, {geometry->sizes, geometry->strides, offset}, geometry);
  return c10::make_intrusive<lazy::View>(std::move(parent), std::move(step), 0, offset);
}

}  // namespace

at::Tensor window(lazy::Storage& storage, const Geometry* geometry, int64_t offset) {
  return view_of(storage, geometry, offset, window_view(storage, geometry, offset));
}

namespace {

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
  auto view = window_view(impl->lazy_storage(), geometry, offset);
  return computed(lazy::make_view(*impl, std::move(view), geometry, offset), computation_of(*impl));
}

// Of memory, as the view is: a tensor with gaps has other values in them.
at::Tensor as_strided_copy(const at::Tensor& self, c10::SymIntArrayRef size,
                           c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return as_strided(self, size, stride, std::move(offset)).clone(at::MemoryFormat::Contiguous);
}

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
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const at::ScalarType dtype = self.scalar_type();
  const Geometry* geometry = stride.empty()
                                 ? lazy::intern_contiguous(dtype, sizes)
                                 : lazy::intern(dtype, sizes, C10_AS_INTARRAYREF_SLOW(stride));
  const lazy::GraphLock lock;
  const int64_t begin = offset.guard_int(__FILE__, __LINE__);
  target->assign(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage), geometry, begin,
                 window_view(*storage, geometry, begin));
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, c10::Storage source) {
  const auto count = static_cast<int64_t>(source.nbytes() / self.element_size());
  return set_source_storage(self, std::move(source), 0, {c10::SymInt(count)}, {});
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

// Whether `x.data = from` may be: it depends on the kind of tensor, not on its keys, which tell
// inference tensors apart.
bool has_compatible_type(const at::Tensor& self, const at::Tensor& from) {
  return (lazy::as_lazy(self) == nullptr) == (lazy::as_lazy(from) == nullptr);
}

at::Tensor shallow_copy(const at::Tensor& self) {
  return at::Tensor(self.unsafeGetTensorImpl()->shallow_copy_and_detach(0, false));
}

// The same view of the same storage: no step is needed.
at::Tensor same(const at::Tensor& self) {
  TensorImpl* impl = lazy::as_lazy(self);
  if (impl == nullptr) return shallow_copy(self);
  return lazy::make_view(*impl, impl->view(), impl->geometry(), impl->storage_offset());
}

// Of an inference tensor PyTorch's has versions, and may be written.
at::Tensor detach(const at::Tensor& self) {
  return self.is_inference() ? shallow_copy(self) : same(self);
}

template <class... Args>
void add_view(torch::Library& library, const char* name) {
  // Lives as long as the registration: for the process.
  auto* kernel = new ViewKernel(find(name));
  library.impl(name,
               [kernel](const at::Tensor& self, Args... args) { return (*kernel)(self, args...); });
}

at::Tensor view_as_dtype(const at::Tensor& self, at::ScalarType dtype) {
  static auto& kernel = *new ViewKernel(find("view.dtype"));
  check_bits_of_memory(self, dtype);
  const at::Tensor shown = kernel(self, dtype);
  const TensorImpl* impl = lazy::as_lazy(shown);
  if (impl == nullptr) return shown;
  return view_of(impl->lazy_storage(), impl->geometry(), impl->storage_offset(), impl->view());
}

at::Tensor view_as_real(const at::Tensor& self) {
  static auto& kernel = *new ViewKernel(find("view_as_real"));
  check_parts_of_memory(self);
  return kernel(self);
}

}  // namespace

void register_views(torch::Library& library) {
  using c10::SymInt, c10::SymIntArrayRef, at::IntArrayRef;
  using OptionalSymInt = std::optional<SymInt>;
  library.impl("alias", TORCH_FN(same));
  library.impl("detach", TORCH_FN(detach));
  add_view<SymIntArrayRef>(library, "view");
  add_view<SymIntArrayRef, SymIntArrayRef>(library, "_reshape_alias");
  add_view<IntArrayRef>(library, "permute");
  add_view<int64_t, int64_t>(library, "transpose.int");
  add_view(library, "t");
  add_view<int64_t, SymInt>(library, "select.int");
  add_view<int64_t, OptionalSymInt, OptionalSymInt, SymInt>(library, "slice.Tensor");
  add_view<int64_t, int64_t, int64_t>(library, "diagonal");
  add_view<SymIntArrayRef, bool>(library, "expand");
  add_view(library, "squeeze");
  add_view<int64_t>(library, "squeeze.dim");
  add_view<IntArrayRef>(library, "squeeze.dims");
  add_view<int64_t>(library, "unsqueeze");
  add_view<int64_t, int64_t, int64_t>(library, "unfold");
  library.impl("view.dtype", TORCH_FN(view_as_dtype));
  library.impl("view_as_real", TORCH_FN(view_as_real));
  add_view(library, "view_as_complex");
  // Values, not bits on the tensor that every kernel would have to look at.
  add_view(library, "_conj");
  add_view(library, "_neg_view");
  for (const auto& [inplace, view] : kInplaceViews) {
    library.impl(inplace, torch::CppFunction::makeFromBoxedFunctor(
                              std::make_unique<InplaceViewKernel>(find(view))));
  }
  library.impl("as_strided", TORCH_FN(as_strided));
  library.impl("as_strided_", TORCH_FN(as_strided_));
  library.impl("as_strided_copy", TORCH_FN(as_strided_copy));
  library.impl("set_.source_Tensor", TORCH_FN(set_source_tensor));
  library.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  library.impl("set_.source_Storage_storage_offset", TORCH_FN(set_source_storage));
  library.impl("set_", TORCH_FN(set_empty));
  library.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_type));
}

// Above autograd too, which would look at the gradients of what is only asked for its kind.
TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) {
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_type));
}

}  // namespace torch_xla::dispatch
