// Writes through views: each view operator's inverse takes a new value of the view back to its
// base.
#include <string_view>
#include <unordered_map>

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
Value un_as_strided(const Inversion& v) {
  const Geometry& memory = *v.step.operands[0].geometry;
  TXLA_CHECK(memory.storage_elements() == memory.numel,
             "as_strided: expected a base that fills its memory, to write into, got strides with "
             "gaps. Call contiguous() on the base first.");
  return call("aten::as_strided_scatter", v.device,
              {v.parent, v.value, v.attr(1), v.attr(2), v.attr(3)}, v.parent_geometry());
}

// Every copy along an expanded dimension was written the same, or PyTorch has refused the write.
Value un_expand(const Inversion& v) {
  const std::vector<int64_t>& parent = v.parent.geometry().sizes;
  Value value = v.value;
  std::vector<int64_t> sizes = value.geometry().sizes;
  const size_t extra = sizes.size() - parent.size();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const bool expanded = i < extra || (parent[i - extra] == 1 && sizes[i] != 1);
    if (!expanded || sizes[i] == 1) continue;
    sizes[i] = 1;
    value = call("aten::slice.Tensor", v.device,
                 {value, c10::IValue(static_cast<int64_t>(i)), c10::IValue(int64_t{0}),
                  c10::IValue(int64_t{1}), c10::IValue(int64_t{1})},
                 lazy::intern_contiguous(value.geometry().dtype, sizes));
  }
  return reshape(value, parent, v.device);
}

// Windows over a row-major parent are strided memory: the general scatter serves.
Value un_unfold(const Inversion& v) {
  const std::vector<int64_t>& sizes = v.parent.geometry().sizes;
  const Geometry* row_major = v.parent_geometry();
  std::vector<int64_t> strides = row_major->strides;
  if (sizes.empty()) {
    strides = {1};
  } else {
    const int64_t dim = wrap(v.attr(1).toInt(), sizes.size());
    strides.push_back(strides[dim]);
    strides[dim] *= v.attr(3).toInt();
  }
  return call("aten::as_strided_scatter", v.device,
              {v.parent, v.value, c10::IValue(v.value.geometry().sizes), c10::IValue(strides),
               c10::IValue(int64_t{0})},
              row_major);
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

void write_through(lazy::Storage& storage, const c10::intrusive_ptr<lazy::View>& view,
                   const Value& value) {
  const Inverse inverse = inverse_of(view->step()->op->name);
  TXLA_CHECK(inverse != nullptr, view->step()->op->name,
             ": expected a view that can be written through, this one has no inverse. "
             "Clone the tensor before writing into it.");
  const bool is_first = !view->parent().defined();
  const Geometry& base = *view->step()->operands[0].geometry;
  const Value parent = is_first ? lazy::value_over(storage, base) : view->parent()->read(storage);
  const Value written = inverse({*view->step(), parent, value, storage.device_index()});
  if (is_first) {
    write_base(storage, base, written);
  } else {
    write_through(storage, view->parent(), written);
  }
}

}  // namespace

void write(lazy::TensorImpl& tensor, lazy::Value value) {
  lazy::Storage& storage = tensor.lazy_storage();
  if (!tensor.view().defined()) {
    write_base(storage, *tensor.geometry(), value);
    return;
  }
  write_through(storage, tensor.view(), value);
  // Reading this view again needs no replay.
  tensor.view()->remember(storage, std::move(value));
}

}  // namespace torch_xla::dispatch
