#include "dispatch/views/view_kernel.h"

#include <array>

#include "dispatch/calls/call.h"
#include "dispatch/calls/computed_views.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::Signature;
using lazy::TensorImpl;
using torch::jit::Stack;

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

c10::intrusive_ptr<c10::StorageImpl> storage_of(const TensorImpl& impl) {
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl.storage().unsafeGetStorageImpl());
}

void InplaceViewKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                                   Stack* stack) {
  const size_t count = op.schema().arguments().size();
  const at::Tensor self = (*stack)[stack->size() - count].toTensor();
  // For wrappers of other classes (FunctionalTensor), PyTorch's code for all devices turns the
  // sizes.
  if (!lazy::is_lazy(self)) {
    return op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  view_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::XLA), stack);
  const at::Tensor view = stack->back().toTensor();
  TensorImpl* target = lazy::as_lazy(self);
  TensorImpl* source = lazy::as_lazy(view);
  TXLA_CHECK(target != nullptr && source != nullptr, op.schema().name(),
             ": expected an xla tensor.");
  target->assign(storage_of(*source), source->geometry(), source->storage_offset(), source->view());
  stack->back() = self;
}

ViewKernel::ViewKernel(const c10::OperatorHandle& op)
    : handle_(op), op_(find_operator(op.operator_name())), meta_(op) {}

at::Tensor ViewKernel::call_meta(const at::Tensor& self, Stack arguments) const {
  arguments.insert(arguments.begin(), self);
  handle_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), &arguments);
  return arguments[0].toTensor();
}

ViewKernel::KnownView& ViewKernel::recent(const util::Hash128& key) {
  static thread_local std::array<KnownView, 256> entries;
  return entries[key.low % entries.size()];
}

ViewKernel::KnownView ViewKernel::make_known(const TensorImpl& self, Stack arguments,
                                             const util::Hash128& key) {
  const lazy::GraphLock lock;
  if (const KnownView* known = memo_.find(key)) return *known;
  Stack results = {meta_tensor(*self.geometry(), false)};
  results.insert(results.end(), arguments.begin(), arguments.end());
  meta_.call(&results);
  const at::Tensor& result = results[0].toTensor();
  const Geometry* geometry = lazy::intern(result.scalar_type(), result.sizes(), result.strides());
  return memo_.add(key, {key, step_of(*op_, self.geometry(), arguments, geometry), geometry,
                         result.storage_offset(), op_->traits->view.kind});
}

c10::intrusive_ptr<lazy::View> joined(const lazy::View& parent, ViewKind kind,
                                      const Signature& step) {
  const Geometry* from = parent.step()->operands[0].geometry;
  const Geometry* to = step.outputs[0];
  std::vector<int64_t> argument = to->sizes;
  bool same = from == to;
  if (kind == ViewKind::Order) {
    const std::vector<int64_t> first = parent.step()->op->traits->view.order(*parent.step());
    argument = step.op->traits->view.order(step);
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

at::Tensor view_of(lazy::Storage& storage, const Geometry* geometry, int64_t offset,
                   c10::intrusive_ptr<lazy::View> view) {
  return at::Tensor(
      c10::make_intrusive<TensorImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage),
                                      geometry, offset, std::move(view)));
}

c10::intrusive_ptr<lazy::View> window_view(lazy::Storage& storage, const Geometry* geometry,
                                           int64_t offset) {
  const lazy::GraphLock lock;
  ops::check_window(*geometry, offset, storage.nbytes());
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

at::Tensor window(lazy::Storage& storage, const Geometry* geometry, int64_t offset) {
  return view_of(storage, geometry, offset, window_view(storage, geometry, offset));
}

}  // namespace torch_xla::dispatch
