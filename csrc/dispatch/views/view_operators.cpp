// The view operators. Each has a kernel, a function in autograd, a way to write through it and a
// lowering, all registered here.
#include "dispatch/views/view_operators.h"

#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include <ATen/ops/_conj_ops.h>
#include <ATen/ops/_neg_view_ops.h>
#include <ATen/ops/_reshape_alias_ops.h>
#include <ATen/ops/alias_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/diagonal_ops.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/split_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unfold_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_as_complex_ops.h>
#include <ATen/ops/view_as_real_ops.h>
#include <ATen/ops/view_ops.h>
#include <torch/library.h>

#include "dispatch/calls/call.h"
#include "dispatch/calls/computed_views.h"
#include "dispatch/calls/own_operator.h"
#include "dispatch/views/view_autograd.h"
#include "dispatch/views/view_kernel.h"
#include "ops/rules.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

namespace rules = ops::rules;
namespace views = view_autograd;

using lazy::Geometry;
using lazy::Signature;
using lazy::TensorImpl;
using lazy::Value;
using ops::Inversion;

// --- writes ----------------------------------------------------------------------------------

Value back_to_shape(const Inversion& v) {
  return reshape(v.value, v.parent.geometry().sizes, v.device);
}

Value permuted(const Inversion& v, const std::vector<int64_t>& order) {
  return call("aten::permute", v.device, {v.value, c10::IValue(order)}, v.parent_geometry());
}

int64_t wrap(int64_t dim, size_t rank) { return dim < 0 ? dim + static_cast<int64_t>(rank) : dim; }

Value un_permute(const Inversion& v) {
  const auto forward = v.attr(1).toIntVector();
  std::vector<int64_t> order(forward.size());
  for (size_t i = 0; i < forward.size(); ++i) {
    order[wrap(forward[i], forward.size())] = static_cast<int64_t>(i);
  }
  return permuted(v, order);
}

Value swap_dims(const Inversion& v, int64_t a, int64_t b) {
  const size_t rank = v.value.geometry().sizes.size();
  if (rank == 0) return v.value;
  std::vector<int64_t> order(rank);
  for (size_t i = 0; i < rank; ++i) order[i] = static_cast<int64_t>(i);
  std::swap(order[wrap(a, rank)], order[wrap(b, rank)]);
  return permuted(v, order);
}
Value un_transpose(const Inversion& v) {
  return swap_dims(v, v.attr(1).toInt(), v.attr(2).toInt());
}
Value un_t(const Inversion& v) {
  return v.value.geometry().sizes.size() < 2 ? v.value : swap_dims(v, 0, 1);
}

Value un_select(const Inversion& v) {
  return call("aten::select_scatter", v.device, {v.parent, v.value, v.attr(1), v.attr(2)},
              v.parent_geometry());
}
Value un_slice(const Inversion& v) {
  return call("aten::slice_scatter", v.device,
              {v.parent, v.value, v.attr(1), v.attr(2), v.attr(3), v.attr(4)}, v.parent_geometry());
}
Value un_diagonal(const Inversion& v) {
  return call("aten::diagonal_scatter", v.device,
              {v.parent, v.value, v.attr(1), v.attr(2), v.attr(3)}, v.parent_geometry());
}
// A window on the parent's memory, row-major or of the layout `memory`, may show an element several
// times. Of those, the one that was written counts.
Value write_window(const Inversion& v, const Geometry* memory, const std::vector<int64_t>& sizes,
                   const std::vector<int64_t>& strides, int64_t offset) {
  return call(
      v.whole ? "aten::as_strided_scatter" : "torch_xla::as_strided_update", v.device,
      {{memory, v.parent}, v.value, c10::IValue(sizes), c10::IValue(strides), c10::IValue(offset)},
      v.parent_geometry());
}
Value un_as_strided(const Inversion& v) {
  const Geometry& memory = *v.step.operands[0].geometry;
  TXLA_CHECK(memory.storage_elements() == memory.numel,
             "as_strided: expected a base that fills its memory, to write into, got strides with "
             "gaps. Call contiguous() on the base first.");
  return write_window(v, v.parent_geometry(), v.attr(1).toIntVector(), v.attr(2).toIntVector(),
                      v.attr(3).toInt());
}

// Copies are windows that do not move.
Value un_expand(const Inversion& v) {
  const std::vector<int64_t>& parent = v.parent.geometry().sizes;
  const std::vector<int64_t>& sizes = v.value.geometry().sizes;
  if (v.value.geometry().numel == v.parent.geometry().numel) return back_to_shape(v);
  const size_t extra = sizes.size() - parent.size();
  std::vector<int64_t> strides(sizes.size(), 0);
  for (size_t i = extra; i < sizes.size(); ++i) {
    if (parent[i - extra] != 1) strides[i] = v.parent_geometry()->strides[i - extra];
  }
  Inversion part = v;
  part.whole = false;  // masked writes are permitted, and leave some copies as they were
  return write_window(part, v.parent_geometry(), sizes, strides, 0);
}

Value un_unfold(const Inversion& v) {
  const std::vector<int64_t>& sizes = v.parent.geometry().sizes;
  std::vector<int64_t> strides = v.parent_geometry()->strides;
  if (sizes.empty()) {
    strides = {1};
  } else {
    const int64_t dim = wrap(v.attr(1).toInt(), sizes.size());
    strides.push_back(strides[dim]);
    strides[dim] *= v.attr(3).toInt();
  }
  return write_window(v, v.parent_geometry(), v.value.geometry().sizes, strides, 0);
}

Value un_view_dtype(const Inversion& v) {
  return call("aten::view.dtype", v.device,
              {v.value, c10::IValue(static_cast<int64_t>(v.parent.geometry().dtype))},
              v.parent_geometry());
}
Value un_view_as_real(const Inversion& v) {
  return call("aten::view_as_complex", v.device, {v.value}, v.parent_geometry());
}
Value un_view_as_complex(const Inversion& v) {
  return call("aten::view_as_real", v.device, {v.value}, v.parent_geometry());
}

Value un_conj(const Inversion& v) {
  return call("aten::_conj", v.device, {v.value}, v.parent_geometry());
}
Value un_neg_view(const Inversion& v) {
  return call("aten::_neg_view", v.device, {v.value}, v.parent_geometry());
}

at::Tensor as_strided_update_meta(const at::Tensor& self, const at::Tensor&, at::IntArrayRef,
                                  at::IntArrayRef, int64_t) {
  return at::empty_like(self);
}

const OwnOperator as_strided_update(
    "as_strided_update(Tensor self, Tensor src, int[] size, int[] stride, int offset) -> Tensor",
    as_strided_update_meta, rules::as_strided_update);

// --- orders of dimensions --------------------------------------------------------------------

std::vector<int64_t> order_of_permute(const Signature& step) {
  std::vector<int64_t> order = step.arguments[1].value.toIntVector();
  for (int64_t& dim : order) dim = wrap(dim, order.size());
  return order;
}

std::vector<int64_t> same_order(const Signature& step) {
  std::vector<int64_t> order(step.outputs[0]->sizes.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

std::vector<int64_t> order_of_t(const Signature& step) {
  std::vector<int64_t> order = same_order(step);
  if (order.size() == 2) std::swap(order[0], order[1]);
  return order;
}

std::vector<int64_t> order_of_transpose(const Signature& step) {
  std::vector<int64_t> order = same_order(step);
  const size_t rank = order.size();
  if (rank > 0) {
    std::swap(order[wrap(step.arguments[1].value.toInt(), rank)],
              order[wrap(step.arguments[2].value.toInt(), rank)]);
  }
  return order;
}

// --- kernels of their own --------------------------------------------------------------------

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

// A copy of memory, as the view is one of memory: a tensor with gaps has other values in them.
at::Tensor as_strided_copy(const at::Tensor& self, c10::SymIntArrayRef size,
                           c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  return as_strided(self, size, stride, std::move(offset)).clone(at::MemoryFormat::Contiguous);
}

// PyTorch has these, alone of the copies of views, for other devices only.
at::Tensor select_copy(const at::Tensor& self, int64_t dim, c10::SymInt index) {
  return at::_ops::select_int::call(self, dim, std::move(index))
      .clone(at::MemoryFormat::Contiguous);
}
at::Tensor slice_copy(const at::Tensor& self, int64_t dim, std::optional<c10::SymInt> start,
                      std::optional<c10::SymInt> end, c10::SymInt step) {
  return at::_ops::slice_Tensor::call(self, dim, std::move(start), std::move(end), std::move(step))
      .clone(at::MemoryFormat::Contiguous);
}
std::vector<at::Tensor> split_copy(const at::Tensor& self, c10::SymInt size, int64_t dim) {
  std::vector<at::Tensor> parts = at::_ops::split_Tensor::call(self, std::move(size), dim);
  for (at::Tensor& part : parts) part = part.clone(at::MemoryFormat::Contiguous);
  return parts;
}

const at::Tensor& as_strided_(const at::Tensor& self, c10::SymIntArrayRef size,
                              c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  if (!lazy::is_lazy(self)) {  // as InplaceViewKernel does
    return at::_ops::as_strided_::redispatch(c10::DispatchKeySet(c10::DispatchKey::CPU), self, size,
                                             stride, std::move(offset));
  }
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

// Returns whether `x.data = from` may be: it depends on the kind of tensor, not on its keys, which
// tell inference tensors apart.
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

// PyTorch's detached copy of an inference tensor has versions, and may be written.
at::Tensor detach(const at::Tensor& self) {
  return self.is_inference() ? shallow_copy(self) : same(self);
}

template <class Op>
ViewKernel& kernel_of() {
  // Lives as long as its registration: for the process.
  static auto& kernel =
      *new ViewKernel(c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name));
  return kernel;
}

at::Tensor view_as_dtype(const at::Tensor& self, at::ScalarType dtype) {
  check_bits_of_memory(self, dtype);
  const at::Tensor shown = kernel_of<at::_ops::view_dtype>()(self, dtype);
  const TensorImpl* impl = lazy::as_lazy(shown);
  if (impl == nullptr) return shown;
  return view_of(impl->lazy_storage(), impl->geometry(), impl->storage_offset(), impl->view());
}

at::Tensor view_as_real(const at::Tensor& self) {
  check_parts_of_memory(self);
  return kernel_of<at::_ops::view_as_real>()(self);
}

// --- the table -------------------------------------------------------------------------------

std::string local_name(const char* name, const char* overload) {
  const std::string full = *overload == 0 ? name : std::string(name) + "." + overload;
  return full.substr(std::string_view("aten::").size());
}
template <class Op>
std::string local_name() {
  return local_name(Op::name, Op::overload_name);
}

template <class Op, class Schema = typename Op::schema>
struct ViewCall;
template <class Op, class... Args>
struct ViewCall<Op, at::Tensor(const at::Tensor&, Args...)> {
  static at::Tensor call(const at::Tensor& self, Args... args) {
    return kernel_of<Op>()(self, args...);
  }
};

using KernelFunction = torch::CppFunction;

// Rows of the table, for PyTorch's libraries.
struct Row {
  std::string name;
  std::function<KernelFunction()> kernel;
  std::function<KernelFunction()> autograd;
};
std::vector<Row>& rows() {
  static auto& rows = *new std::vector<Row>;
  return rows;
}

// An operator that gives a view: how it is lowered, written through, recorded, differentiated.
template <class Op, class Kernel = ViewCall<Op>, class Autograd = views::ViewAutograd<Op>>
void add_view(ops::Registry& r, ops::RuleFunction lower, const ops::ViewTraits& view,
              ops::Autocast autocast = ops::Autocast::Unnamed) {
  const std::string full = "aten::" + local_name<Op>();
  r.add(full, lower);
  r.one(full) = {.view = view, .autocast = autocast};
  rows().push_back({local_name<Op>(), [] { return KernelFunction(&Kernel::call); },
                    [] { return KernelFunction(&Autograd::call); }});
}

template <at::Tensor (*function)(const at::Tensor&)>
struct Unary {
  static at::Tensor call(const at::Tensor& self) { return function(self); }
};
struct AsDtype {
  static at::Tensor call(const at::Tensor& self, at::ScalarType dtype) {
    return view_as_dtype(self, dtype);
  }
};
struct AsStrided {
  static at::Tensor call(const at::Tensor& self, c10::SymIntArrayRef size,
                         c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
    return as_strided(self, size, stride, std::move(offset));
  }
};

// The form in place of the view operator `Op`.
template <class InPlace, class Op>
void add_in_place() {
  rows().push_back(
      {local_name<InPlace>(),
       [] {
         return KernelFunction::makeFromBoxedFunctor(std::make_unique<InplaceViewKernel>(
             c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name)));
       },
       [] { return KernelFunction(&views::TurnedInPlace<InPlace>::call); }});
}

const ops::Rules view_operators_rules([](ops::Registry& r) {
  namespace op = at::_ops;
  using ops::ViewKind;
  const ops::ViewTraits shape = {.kind = ViewKind::Shape, .inverse = back_to_shape};
  add_view<op::view>(r, rules::same_elements, shape);
  add_view<op::squeeze>(r, rules::same_elements, shape);
  add_view<op::squeeze_dim>(r, rules::same_elements, shape);
  add_view<op::squeeze_dims>(r, rules::same_elements, shape);
  add_view<op::unsqueeze>(r, rules::same_elements, shape);
  using AliasAutograd = views::AnyView<op::_reshape_alias>;
  add_view<op::_reshape_alias, ViewCall<op::_reshape_alias>, AliasAutograd>(r, rules::same_elements,
                                                                            shape);

  const auto order = [](lazy::Value (*inverse)(const Inversion&),
                        std::vector<int64_t> (*of)(const Signature&)) {
    return ops::ViewTraits{.kind = ViewKind::Order, .inverse = inverse, .order = of};
  };
  add_view<op::permute>(r, rules::permute, order(un_permute, order_of_permute));
  add_view<op::transpose_int>(r, rules::transpose, order(un_transpose, order_of_transpose));
  add_view<op::t>(r, rules::t, order(un_t, order_of_t));

  add_view<op::select_int>(r, rules::select, {.inverse = un_select});
  add_view<op::slice_Tensor>(r, rules::slice, {.inverse = un_slice});
  add_view<op::diagonal>(r, rules::diagonal, {.inverse = un_diagonal});
  add_view<op::expand>(r, rules::expand, {.inverse = un_expand, .repeats = true});
  add_view<op::unfold>(r, rules::unfold, {.inverse = un_unfold, .repeats = true});
  add_view<op::as_strided, AsStrided, views::AnyView<op::as_strided>>(
      r, rules::as_strided, {.inverse = un_as_strided, .repeats = true});

  add_view<op::view_dtype, AsDtype, views::AnyView<op::view_dtype>>(r, rules::view_dtype,
                                                                    {.inverse = un_view_dtype});
  add_view<op::view_as_real, Unary<view_as_real>, views::AnyView<op::view_as_real>>(
      r, rules::view_as_real, {.inverse = un_view_as_real});
  add_view<op::view_as_complex, ViewCall<op::view_as_complex>, views::AnyView<op::view_as_complex>>(
      r, rules::view_as_complex, {.inverse = un_view_as_complex}, ops::Autocast::Float32);
  // Values, not bits on the tensor that every kernel would have to look at.
  add_view<op::_conj, ViewCall<op::_conj>, views::AnyView<op::_conj>>(
      r, rules::conj, {.kind = ViewKind::Conjugated, .inverse = un_conj});
  add_view<op::_neg_view, ViewCall<op::_neg_view>, views::AnyView<op::_neg_view>>(
      r, rules::neg_view, {.kind = ViewKind::Negated, .inverse = un_neg_view});

  r.one("aten::detach_").stays_composite = true;
  add_in_place<op::t_, op::t>();
  add_in_place<op::transpose_, op::transpose_int>();
  add_in_place<op::squeeze_, op::squeeze>();
  add_in_place<op::squeeze__dim, op::squeeze_dim>();
  add_in_place<op::squeeze__dims, op::squeeze_dims>();
  add_in_place<op::unsqueeze_, op::unsqueeze>();
});

TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("alias", TORCH_FN(same));
  m.impl("detach", TORCH_FN(detach));
  m.impl("as_strided_", TORCH_FN(as_strided_));
  m.impl("as_strided_copy", TORCH_FN(as_strided_copy));
  m.impl("select_copy.int", TORCH_FN(select_copy));
  m.impl("slice_copy.Tensor", TORCH_FN(slice_copy));
  m.impl("split_copy.Tensor", TORCH_FN(split_copy));
  m.impl("set_.source_Tensor", TORCH_FN(set_source_tensor));
  m.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_source_storage));
  m.impl("set_", TORCH_FN(set_empty));
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_type));
}

TORCH_LIBRARY_IMPL(aten, AutogradXLA, m) {
  m.impl("alias", views::AnyView<at::_ops::alias>::call);
  m.impl("as_strided_", views::TurnedInPlace<at::_ops::as_strided_>::call);
  // Above autograd too, which would look at the gradients of what is only asked for its kind.
  m.impl("_has_compatible_shallow_copy_type", TORCH_FN(has_compatible_type));
}

}  // namespace

void register_views(torch::Library& library) {
  ops::Registry::get();  // fills the table
  static auto& autograd = *new torch::Library(torch::Library::IMPL, "aten",
                                              c10::DispatchKey::AutogradXLA, __FILE__, __LINE__);
  for (const Row& row : rows()) {
    library.impl(row.name.c_str(), row.kernel());
    autograd.impl(row.name.c_str(), row.autograd());
  }
}

}  // namespace torch_xla::dispatch
