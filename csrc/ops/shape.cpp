// Views, and the operators that write through a view or carry a gradient back through one.
#include <algorithm>
#include <array>

#include "ops/common.h"
#include "ops/lowering.h"
#include "ops/meta.h"
#include "ops/rearrange.h"
#include "ops/rules.h"
#include "ops/windows.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

// view, squeeze, unsqueeze, alias, ...: the same elements in the same row-major order.
Values same_elements(Lowering& l) { return {hlo::reshape(l.in(0), l.out().dims)}; }

Values expand(Lowering& l) { return {hlo::broadcast_to(l.in(0), l.out().dims)}; }

Values permute(Lowering& l) {
  std::vector<int64_t> order = l.ints(1);
  for (int64_t& dim : order) dim = wrap_dim(dim, static_cast<int64_t>(order.size()));
  return {hlo::transpose(l.in(0), order)};
}

Value swap_dims(const Value& x, int64_t a, int64_t b) {
  std::vector<int64_t> order = all_dims(x.rank());
  std::swap(order[a], order[b]);
  return hlo::transpose(x, order);
}

Values transpose(Lowering& l) {
  const Value x = l.in(0);
  if (x.rank() == 0) return {x};
  return {swap_dims(x, wrap_dim(l.integer(1), x.rank()), wrap_dim(l.integer(2), x.rank()))};
}

Values t(Lowering& l) {
  const Value x = l.in(0);
  return {x.rank() < 2 ? x : swap_dims(x, 0, 1)};
}

// --- select --------------------------------------------------------------------------------

Values select(Lowering& l) {
  const Value x = l.in(0);
  const int64_t dim = wrap_dim(l.integer(1), x.rank());
  const int64_t index = wrap_dim(l.integer(2), x.dim(dim));
  return {remove_dim(hlo::slice_dim(x, dim, index, index + 1), dim)};
}

Values select_scatter(Lowering& l) {
  const Value x = l.in(0);
  const int64_t dim = wrap_dim(l.integer(2), x.rank());
  Dims starts(x.rank(), 0), sizes = x.dims();
  starts[dim] = wrap_dim(l.integer(3), x.dim(dim));
  sizes[dim] = 1;
  Dims without = x.dims();
  without.erase(without.begin() + dim);
  const Value src = hlo::broadcast_to(cast(l.in(1), x.dtype()), without);
  return {overwrite(x, hlo::reshape(src, sizes), starts)};
}

Values select_backward(Lowering& l) {
  const hlo::Type type = l.out();
  const int64_t dim = wrap_dim(l.integer(2), type.rank());
  const int64_t index = wrap_dim(l.integer(3), type.dims[dim]);
  return result(l, pad_dim(insert_dim(l.in(0), dim), dim, index, type.dims[dim] - index - 1));
}

// --- slice ---------------------------------------------------------------------------------

struct Slice {
  int64_t dim, start, limit, step, count;
};

// Arguments dim, start, end, step from schema position `first` on; `end` is clamped as in Python.
Slice slice_of(const Lowering& l, size_t first, const Dims& dims) {
  Slice s;
  s.dim = wrap_dim(l.integer(first), static_cast<int64_t>(dims.size()));
  const int64_t length = dims[s.dim];
  const auto bound = [&](size_t arg, int64_t missing) {
    int64_t value = l.has(arg) ? l.integer(arg) : missing;
    if (value < 0) value += length;
    return std::clamp<int64_t>(value, 0, length);
  };
  s.start = bound(first + 1, 0);
  s.limit = std::max(bound(first + 2, length), s.start);
  s.step = l.integer(first + 3);
  s.count = (s.limit - s.start + s.step - 1) / s.step;
  return s;
}

// `x` with `count` elements along s.dim, put back where they were cut from; zeros elsewhere.
Value spread_slice(const Value& x, const Slice& s, int64_t length) {
  const int64_t extent = s.count == 0 ? 0 : (s.count - 1) * s.step + 1;
  return pad_dim(x, s.dim, s.start, length - s.start - extent, s.step - 1);
}

Values slice(Lowering& l) {
  const Value x = l.in(0);
  const Slice s = slice_of(l, 1, x.dims());
  return {hlo::slice_dim(x, s.dim, s.start, s.limit, s.step)};
}

Values slice_scatter(Lowering& l) {
  const Value x = l.in(0);
  const Slice s = slice_of(l, 2, x.dims());
  Dims dims = x.dims();
  dims[s.dim] = s.count;
  const Value src = hlo::broadcast_to(cast(l.in(1), x.dtype()), dims);
  if (src.type().elements() == 0) return {x};
  if (s.step == 1) {
    Dims starts(x.rank(), 0);
    starts[s.dim] = s.start;
    return {overwrite(x, src, starts)};
  }
  const hlo::Type line{DType::Pred, {s.count}};
  const Slice along_line{0, s.start, s.limit, s.step, s.count};
  const Value mask = spread_slice(hlo::one(l.b, line), along_line, x.dim(s.dim));
  const Dims mapping = {s.dim};
  return {hlo::select(hlo::broadcast_in_dim(mask, x.dims(), mapping),
                      spread_slice(src, s, x.dim(s.dim)), x)};
}

Values slice_backward(Lowering& l) {
  const hlo::Type type = l.out();
  const Slice s = slice_of(l, 2, type.dims);
  if (l.in(0).type().elements() == 0) return {hlo::zero(l.b, type)};
  return result(l, spread_slice(l.in(0), s, type.dims[s.dim]));
}

// split, split_with_sizes, chunk and their unsafe forms: the result types hold the sizes.
Values split(Lowering& l) {
  const Value x = l.in(0);
  const int64_t dim = wrap_dim(l.integer(2), x.rank());
  Values pieces;
  int64_t start = 0;
  for (size_t i = 0; i < l.num_outputs(); ++i) {
    const int64_t size = l.out(i).dims[dim];
    pieces.push_back(hlo::slice_dim(x, dim, start, start + size));
    start += size;
  }
  return pieces;
}

// --- diagonal ------------------------------------------------------------------------------

// The diagonal of dimensions (dim1, dim2), moved to the end and flattened, is a strided slice.
struct Diagonal {
  std::vector<int64_t> order, inverse;
  int64_t rows, columns, start, extent, length;

  Diagonal(const Dims& dims, int64_t offset, int64_t dim1, int64_t dim2) {
    const int64_t rank = static_cast<int64_t>(dims.size());
    dim1 = wrap_dim(dim1, rank);
    dim2 = wrap_dim(dim2, rank);
    for (int64_t i = 0; i < rank; ++i) {
      if (i != dim1 && i != dim2) order.push_back(i);
    }
    order.push_back(dim1);
    order.push_back(dim2);
    inverse.resize(rank);
    for (int64_t i = 0; i < rank; ++i) inverse[order[i]] = i;
    rows = dims[dim1];
    columns = dims[dim2];
    start = offset >= 0 ? offset : -offset * columns;
    length = std::max<int64_t>(
        0, offset >= 0 ? std::min(rows, columns - offset) : std::min(rows + offset, columns));
    extent = length == 0 ? 0 : (length - 1) * (columns + 1) + 1;
  }

  // Zeros (false), and `x` on the diagonal. x is not empty.
  Value embed(const Value& x, const Dims& dims) const {
    const int64_t last = x.rank() - 1;
    const Value flat = pad_dim(x, last, start, rows * columns - start - extent, columns);
    Dims moved;
    for (const int64_t dim : order) moved.push_back(dims[dim]);
    return hlo::transpose(hlo::reshape(flat, moved), inverse);
  }
};

Values diagonal(Lowering& l) {
  const Value x = l.in(0);
  const Diagonal d(x.dims(), l.integer(1), l.integer(2), l.integer(3));
  if (l.out().elements() == 0) return {hlo::zero(l.b, l.out())};
  const int64_t last = x.rank() - 2;
  const Value flat = merge_dims(hlo::transpose(x, d.order), last, 2);
  return {hlo::slice_dim(flat, last, d.start, d.start + d.extent, d.columns + 1)};
}

Values diagonal_scatter(Lowering& l) {
  const Value x = l.in(0);
  const Diagonal d(x.dims(), l.integer(2), l.integer(3), l.integer(4));
  const Value src = cast(l.in(1), x.dtype());
  if (src.type().elements() == 0) return {x};
  const Value mask = d.embed(hlo::one(l.b, src.type().with(DType::Pred)), x.dims());
  return {hlo::select(mask, d.embed(src, x.dims()), x)};
}

// The first argument on a diagonal of zeros, of which `Offset` and the next two arguments say
// which.
template <size_t Offset>
Values on_diagonal(Lowering& l) {
  const hlo::Type type = l.out();
  const Value x = l.in(0);
  if (x.type().elements() == 0) return {hlo::zero(l.b, type)};
  const Diagonal d(type.dims, l.integer(Offset), l.integer(Offset + 1), l.integer(Offset + 2));
  return result(l, d.embed(x, type.dims));
}

Values trace(Lowering& l) {
  const Value x = cast(l.in(0), compute_dtype(l.out().dtype));
  const Diagonal d(x.dims(), 0, 0, 1);
  if (d.length == 0) return {hlo::zero(l.b, l.out())};
  const Dims all = {0};
  const Value line = hlo::slice_dim(flatten(x), 0, d.start, d.start + d.extent, d.columns + 1);
  return result(l, reduce_sum(line, all));
}

// --- unfold --------------------------------------------------------------------------------

Values unfold(Lowering& l) {
  Value x = l.in(0);
  if (l.out().elements() == 0) return {hlo::zero(l.b, l.out())};
  if (x.rank() == 0) return {hlo::reshape(x, l.out().dims)};
  const int64_t dim = wrap_dim(l.integer(1), x.rank());
  return {move_dim(windows(x, dim, l.integer(2), l.integer(3)), dim + 1, x.rank())};
}

Values unfold_backward(Lowering& l) {
  const Value grad = l.in(0);
  const hlo::Type type = l.out();
  if (grad.type().elements() == 0) return {hlo::zero(l.b, type)};
  if (type.rank() == 0) return result(l, hlo::reshape(grad, {}));
  const int64_t dim = wrap_dim(l.integer(2), type.rank());
  const Value wide = hlo::convert(grad, compute_dtype(grad.dtype()));
  return result(
      l, overlap_add(move_dim(wide, grad.rank() - 1, dim + 1), dim, type.dims[dim], l.integer(4)));
}

// --- reinterpretation ----------------------------------------------------------------------

Value as_real(const Value& x) {
  const std::array<Value, 2> parts = {hlo::real(x), hlo::imag(x)};
  return stack(parts, x.rank());
}

Value as_complex(const Value& x) {
  const int64_t last = x.rank() - 1;
  return hlo::complex(remove_dim(hlo::slice_dim(x, last, 0, 1), last),
                      remove_dim(hlo::slice_dim(x, last, 1, 2), last));
}

// view.dtype: the bytes of the last dimension read as another type, little-endian. Rows hold whole
// elements of both types, so that this is the same for the flat array.
Values view_dtype(Lowering& l) {
  const hlo::Type type = l.out();
  Value x = l.in(0);
  if (x.dtype() == type.dtype) return {x};
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  if (hlo::is_complex(x.dtype())) x = as_real(x);
  if (x.dtype() == DType::Pred) x = hlo::convert(x, DType::U8);
  x = flatten(x);
  const DType target = type.dtype == DType::Pred ? DType::U8 : hlo::real_part(type.dtype);
  const int64_t from = static_cast<int64_t>(hlo::byte_size(x.dtype()));
  const int64_t to = static_cast<int64_t>(hlo::byte_size(target));
  const int64_t count = x.dim(0);
  if (from == to) {
    x = hlo::bitcast_convert(x, {target, {count}});
  } else if (from > to) {
    x = hlo::bitcast_convert(x, {target, {count, from / to}});
  } else {
    x = hlo::bitcast_convert(hlo::reshape(x, {count * from / to, to / from}),
                             {target, {count * from / to}});
  }
  if (hlo::is_complex(type.dtype)) {
    Dims parts = type.dims;
    parts.push_back(2);
    return {as_complex(hlo::reshape(x, parts))};
  }
  return {cast(hlo::reshape(x, type.dims), type.dtype)};
}

// (grad, input_sizes, dim, size, step)
void unfold_backward_meta(MetaCall& call) {
  const at::Tensor grad = call.tensor(0);
  const std::vector<int64_t> sizes = call[1].toIntVector();
  if (sizes.empty() || static_cast<size_t>(grad.dim()) != sizes.size() + 1) return call.pytorch();
  call.results({meta_of_sizes(grad, sizes)});
}

void trace_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  if (x.dim() != 2) return call.pytorch();
  const bool integers = c10::isIntegralType(x.scalar_type(), true);
  call.results({meta_of_sizes(integers ? at::kLong : x.scalar_type(), {})});
}

}  // namespace

namespace rules {

const RuleFunction same_elements = ops::same_elements;
const RuleFunction expand = ops::expand;
const RuleFunction permute = ops::permute;
const RuleFunction transpose = ops::transpose;
const RuleFunction t = ops::t;
const RuleFunction select = ops::select;
const RuleFunction slice = ops::slice;
const RuleFunction diagonal = ops::diagonal;
const RuleFunction unfold = ops::unfold;
const RuleFunction view_dtype = ops::view_dtype;

}  // namespace rules

const Rules shape_rules([](Registry& r) {
  r.add("aten::_reshape_copy", same_elements);
  r.add("aten::select_scatter", select_scatter);
  r.add("aten::select_backward", select_backward);
  r.add("aten::slice_scatter", slice_scatter);
  r.add("aten::slice_backward", slice_backward);
  for (const char* name : {"aten::unsafe_split.Tensor", "aten::unsafe_split_with_sizes"}) {
    r.add(name, split);
  }
  r.add("aten::diagonal_scatter", diagonal_scatter);
  r.add("aten::diagonal_backward", on_diagonal<2>);
  r.add("aten::diag_embed", on_diagonal<1>);
  r.add("aten::unfold_backward", unfold_backward);
  r.add("aten::trace", trace);

  r.all("aten::diag_embed").layout = row_major;
  r.all("aten::unfold_backward").meta = unfold_backward_meta;
  r.all("aten::trace") = {.meta = trace_meta, .takes_integers = true};
});

}  // namespace torch_xla::ops
