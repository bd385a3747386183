// Writes through views: each view operator's inverse takes a new value of the view back to its
// base.
#include <string_view>
#include <unordered_map>

#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "dispatch/call.h"
#include "dispatch/resize.h"
#include "lazy/memory.h"
#include "lazy/operator.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::Signature;
using lazy::Value;

struct Inversion {
  const Signature& step;
  const Value& parent;  // the parent's present value
  const Value& value;   // what the view shall hold
  bool whole;           // the view itself was written, not a part of it
  int device;

  const Geometry* parent_geometry() const {
    return lazy::intern_contiguous(parent.geometry().dtype, parent.geometry().sizes);
  }
  const c10::IValue& attr(size_t i) const { return step.arguments[i].value; }
};

using Inverse = Value (*)(const Inversion&);

Value same(const Inversion& v) { return v.value; }
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

Inverse inverse_of(std::string_view op) {
  static const std::unordered_map<std::string_view, Inverse> kInverses = {
      {"aten::alias", same},
      {"aten::view", back_to_shape},
      {"aten::_reshape_alias", back_to_shape},
      {"aten::squeeze", back_to_shape},
      {"aten::squeeze.dim", back_to_shape},
      {"aten::squeeze.dims", back_to_shape},
      {"aten::unsqueeze", back_to_shape},
      {"aten::permute", un_permute},
      {"aten::transpose.int", un_transpose},
      {"aten::t", un_t},
      {"aten::select.int", un_select},
      {"aten::slice.Tensor", un_slice},
      {"aten::diagonal", un_diagonal},
      {"aten::as_strided", un_as_strided},
      {"aten::expand", un_expand},
      {"aten::unfold", un_unfold},
      {"aten::view.dtype", un_view_dtype},
      {"aten::view_as_real", un_view_as_real},
      {"aten::view_as_complex", un_view_as_complex},
      {"aten::_conj", un_conj},
      {"aten::_neg_view", un_neg_view},
  };
  const auto it = kInverses.find(op);
  return it == kInverses.end() ? nullptr : it->second;
}

void write_base(lazy::Storage& storage, const Geometry& base, const Value& value) {
  if (&base == &storage.geometry()) {
    storage.set_value(value);
  } else {
    write_over(storage, base, value);
  }
}

// Whether an element of the parent may be seen several times.
bool repeats(std::string_view op) {
  return op == "aten::expand" || op == "aten::unfold" || op == "aten::as_strided";
}

}  // namespace

void write(lazy::TensorImpl& tensor, lazy::Value value) {
  lazy::Storage& storage = tensor.lazy_storage();
  if (!tensor.view().defined()) {
    write_base(storage, *tensor.geometry(), value);
    return;
  }
  Value next = value;
  const Geometry* base = nullptr;  // of what the first step of the chain reads
  bool exact = true;
  for (const lazy::View* view = tensor.view().get(); view != nullptr; view = view->parent().get()) {
    const std::string& op = view->step()->op->name;
    const Inverse inverse = inverse_of(op);
    TXLA_CHECK(inverse != nullptr, op,
               ": expected a view that can be written through, this one has no inverse. "
               "Clone the tensor before writing into it.");
    base = view->step()->operands[0].geometry;
    const Value parent =
        view->parent().defined() ? view->parent()->read(storage) : lazy::value_over(storage, *base);
    next =
        inverse({*view->step(), parent, next, view == tensor.view().get(), storage.device_index()});
    exact = exact && !repeats(op);
  }
  write_base(storage, *base, next);
  // Reading this view again needs no replay.
  if (exact) tensor.view()->remember(storage, std::move(value));
}

at::Tensor as_strided_update_meta(const at::Tensor& self, const at::Tensor&, at::IntArrayRef,
                                  at::IntArrayRef, int64_t) {
  return at::empty_like(self);
}

TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  m.def(
      "as_strided_update(Tensor self, Tensor src, int[] size, int[] stride, int offset) -> Tensor");
}
TORCH_LIBRARY_IMPL(torch_xla, Meta, m) {
  m.impl("as_strided_update", TORCH_FN(as_strided_update_meta));
}

}  // namespace torch_xla::dispatch
