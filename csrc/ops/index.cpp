// Advanced indexing: index and index_put in all their forms, masks, index_select, index_add and the
// rest of the index_* family, take and put.
#include "ops/index.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>

#include "lazy/operator.h"
#include "ops/common.h"
#include "ops/lowering.h"
#include "ops/shape.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

bool is_mask(const Value& index) {
  return index.dtype() == DType::Pred || index.dtype() == DType::U8;
}

// --- index, index_put ----------------------------------------------------------------------

// x[i, :, j] with integer tensors: which dimensions are indexed, by what, and where the common
// dimensions of the indices stand in the result. Where an index past the ends is no mistake, it
// means the element at the end.
class Subscript {
 public:
  enum class PastEnds { Mistake, End };

  Subscript(const Lowering& l, size_t arg, const Value& x, PastEnds past = PastEnds::Mistake)
      : Subscript(l, l.optional_list(arg), x, past) {}

  bool empty() const { return dims_.empty(); }

  Value read(const Value& x) const {
    const hlo::Type type = x.type().with(result_dims());
    if (type.elements() == 0 || x.type().elements() == 0) return hlo::zero(x.builder(), type);
    hlo::GatherDims d;
    d.offset_dims = window_dims();
    d.collapsed_slice_dims = d.start_index_map = dims_;
    d.index_vector_dim = static_cast<int64_t>(common_.size());
    Dims sizes = x.dims();
    for (const int64_t dim : dims_) sizes[dim] = 1;
    return hlo::gather(x, index_, d, sizes, type);
  }

  Value write(const Value& x, const Value& values, const hlo::Combine& combine) const {
    const Value updates = hlo::broadcast_to(values, result_dims());
    if (updates.type().elements() == 0) return x;
    hlo::ScatterDims d;
    d.update_window_dims = window_dims();
    d.inserted_window_dims = d.scatter_dims_to_operand_dims = dims_;
    d.index_vector_dim = static_cast<int64_t>(common_.size());
    return hlo::scatter(x, index_, updates, d, combine);
  }

  Dims result_dims() const {
    Dims dims;
    for (int64_t i = 0; i < rank_; ++i) {
      if (i == position_) dims.insert(dims.end(), common_.begin(), common_.end());
      if (!indexed(i)) dims.push_back(sizes_[i]);
    }
    if (position_ == rank_) dims.insert(dims.end(), common_.begin(), common_.end());
    return dims;
  }

 private:
  Subscript(const Lowering& l, const std::vector<std::optional<Value>>& list, const Value& x,
            PastEnds past)
      : rank_(x.rank()), sizes_(x.dims()) {
    for (size_t i = 0; i < list.size(); ++i) {
      if (!list[i]) continue;
      if (is_mask(*list[i])) {
        throw std::invalid_argument(
            l.signature().op->name + ": expected integer indices, got a mask of shape " +
            list[i]->type().str() + " among them. Pass mask.nonzero(as_tuple=True) instead.");
      }
      dims_.push_back(static_cast<int64_t>(i));
      merge(common_, list[i]->dims());
    }
    if (dims_.empty()) return;
    const bool adjacent = dims_.back() - dims_.front() + 1 == static_cast<int64_t>(dims_.size());
    position_ = adjacent ? dims_.front() : 0;
    Values columns;
    for (const int64_t dim : dims_) {
      Value index = hlo::convert(wrap_index(*list[dim], x.dim(dim)), DType::S64);
      if (past == PastEnds::End) {
        index = hlo::max(hlo::min(index, hlo::like(index, x.dim(dim) - 1)), hlo::like(index, 0));
      }
      columns.push_back(hlo::broadcast_to(index, common_));
    }
    const int64_t last = static_cast<int64_t>(common_.size());
    index_ = columns.size() == 1 ? insert_dim(columns[0], last) : stack(columns, last);
  }

  static void merge(Dims& into, const Dims& other) {
    if (other.size() > into.size()) into.insert(into.begin(), other.size() - into.size(), 1);
    for (size_t i = 0; i < other.size(); ++i) {
      int64_t& size = into[into.size() - other.size() + i];
      if (size == 1) size = other[i];
    }
  }
  bool indexed(int64_t dim) const {
    return std::find(dims_.begin(), dims_.end(), dim) != dims_.end();
  }
  // Positions in the result of the dimensions that are not indexed.
  Dims window_dims() const {
    Dims dims;
    int64_t at = 0;
    for (int64_t i = 0; i < rank_; ++i) {
      if (i == position_) at += static_cast<int64_t>(common_.size());
      if (!indexed(i)) dims.push_back(at++);
    }
    return dims;
  }

  int64_t rank_;
  Dims sizes_;
  std::vector<int64_t> dims_;  // indexed dimensions of x
  Dims common_;                // the broadcast shape of the indices
  int64_t position_ = 0;       // dimension of x before which `common_` stands in the result
  Value index_;                // (common..., one column for each indexed dimension)
};

Values index(Lowering& l) {
  const Value x = l.in(0);
  const Subscript subscript(l, 1, x);
  return {subscript.empty() ? x : subscript.read(x)};
}

// The one index of x[:, mask], if it is a mask; its position is where it stands.
std::optional<std::pair<int64_t, Value>> only_mask(const Lowering& l, size_t arg) {
  const auto list = l.optional_list(arg);
  std::optional<std::pair<int64_t, Value>> found;
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i]) continue;
    if (found || !is_mask(*list[i])) return std::nullopt;
    found.emplace(static_cast<int64_t>(i), *list[i]);
  }
  return found;
}

// x[..., mask, ...] = values without knowing how many elements are true. `values` has one row for
// all of them, or a row for each, in their order.
Value write_mask(const Value& x, int64_t position, const Value& mask_index, const Value& values,
                 bool add) {
  const Value mask = cast(mask_index, DType::Pred);
  const int64_t masked = mask.rank(), trailing = x.rank() - position - masked;
  const int64_t row = values.rank() - 1 - trailing;  // the dimension of values that counts rows
  Dims dims;
  Value spread = values;
  if (row >= 0 && values.dim(row) != 1) {
    const Value order = running_sum(hlo::convert(flatten(mask), DType::S64), 0) - 1;
    spread = take_rows(values, row, order);
    dims = mask.dims();
  } else if (row >= 0) {
    dims.assign(masked, 1);
  }
  if (row >= 0) {
    Dims shape(spread.dims().begin(), spread.dims().begin() + row);
    shape.insert(shape.end(), dims.begin(), dims.end());
    shape.insert(shape.end(), spread.dims().begin() + row + 1, spread.dims().end());
    spread = hlo::reshape(spread, shape);
  }
  spread = hlo::broadcast_to(spread, x.dims());
  Dims mapping;
  for (int64_t i = 0; i < masked; ++i) mapping.push_back(position + i);
  const Value where = hlo::broadcast_in_dim(mask, x.dims(), mapping);
  return hlo::select(where, add ? accumulate(x, spread) : spread, x);
}

// Sums of narrow floats are computed in f32 and rounded once.
Value summed(const Value& x, const Value& values,
             const std::function<Value(const Value&, const Value&)>& write) {
  const DType wide = compute_dtype(x.dtype());
  return hlo::convert(write(hlo::convert(x, wide), hlo::convert(values, wide)), x.dtype());
}

Values index_put(Lowering& l) {
  const Value x = l.in(0);
  const Value values = cast(l.in(2), x.dtype());
  const bool add = l.flag(3);
  if (x.type().elements() == 0) return {x};
  if (const auto mask = only_mask(l, 1)) {
    if (values.type().elements() == 0) return {x};
    return {write_mask(x, mask->first, mask->second, values, add)};
  }
  const Subscript subscript(l, 1, x);
  if (subscript.empty()) {
    const Value all = hlo::broadcast_to(values, x.dims());
    return {add ? accumulate(x, all) : all};
  }
  if (!add) return {subscript.write(x, values, replace)};
  return {summed(x, values, [&](const Value& to, const Value& what) {
    return subscript.write(to, what, accumulate);
  })};
}

Values unsafe_masked_index(Lowering& l) {
  const Value x = l.in(0);
  const hlo::Type type = l.out();
  const Value fill = hlo::broadcast_to(l.number(3, x.dtype()), type.dims);
  const Subscript subscript(l, 2, x, Subscript::PastEnds::End);
  if (x.type().elements() == 0) return {fill};
  const Value read = subscript.empty() ? x : subscript.read(x);
  const Value mask = hlo::broadcast_to(cast(l.in(1), DType::Pred), type.dims);
  return {hlo::select(mask, hlo::broadcast_to(read, type.dims), fill)};
}

Values unsafe_masked_index_put_accumulate(Lowering& l) {
  const Value x = l.in(0);
  if (x.type().elements() == 0) return {x};
  const Subscript subscript(l, 2, x, Subscript::PastEnds::End);
  const Dims dims = subscript.result_dims();
  const Value values = hlo::broadcast_to(cast(l.in(3), x.dtype()), dims);
  const Value mask = hlo::broadcast_to(cast(l.in(1), DType::Pred), dims);
  return {summed(x, hlo::select(mask, values, 0), [&](const Value& to, const Value& what) {
    return subscript.write(to, what, accumulate);
  })};
}

// --- index_select and its relatives: one dimension, a list of positions --------------------

// Arguments (self, dim, index, source) of the family, 0-dim tensors seen as 1-dim.
struct Rows {
  Value x, index;
  int64_t dim;
  explicit Rows(const Lowering& l)
      : x(at_least_1d(l.in(0))),
        index(at_least_1d(l.in(2))),
        dim(wrap_dim(l.integer(1), x.rank())) {}

  Value source(const Lowering& l, size_t arg, DType dtype) const {
    return at_least_1d(cast(l.in(arg), dtype));
  }
  // One entry for each position of the dimension: how many indices name it.
  Value counts(DType dtype) const {
    hlo::Builder& b = x.builder();
    return scatter_rows(hlo::zero(b, {dtype, {x.dim(dim)}}), 0, index,
                        hlo::one(b, index.type().with(dtype)), hlo::add);
  }
  Value spread(const Value& line) const {
    const Dims mapping = {dim};
    return hlo::broadcast_in_dim(line, x.dims(), mapping);
  }
};

Values index_select(Lowering& l) {
  const Rows r(l);
  return {hlo::reshape(take_rows(r.x, r.dim, r.index), l.out().dims)};
}

Values index_add(Lowering& l) {
  const Rows r(l);
  const DType wide = compute_dtype(r.x.dtype());
  Value source = r.source(l, 3, wide);
  if (!is_static_number(l, 4, 1)) {
    const Value alpha = hlo::broadcast_to(l.number(4, wide), source.dims());
    source = wide == DType::Pred ? source & alpha : source * alpha;
  }
  const Value sum = scatter_rows(hlo::convert(r.x, wide), r.dim, r.index, source, accumulate);
  return {hlo::reshape(hlo::convert(sum, r.x.dtype()), l.out().dims)};
}

Values index_copy(Lowering& l) {
  const Rows r(l);
  const Value source = r.source(l, 3, r.x.dtype());
  return {hlo::reshape(scatter_rows(r.x, r.dim, r.index, source, replace), l.out().dims)};
}

Values index_fill(Lowering& l) {
  Rows r(l);
  r.index = wrap_index(r.index, r.x.dim(r.dim));
  const Value filler = hlo::broadcast_to(l.number(3, r.x.dtype()), r.x.dims());
  const Value hit = cast(r.counts(DType::S32), DType::Pred);
  return {hlo::reshape(hlo::select(r.spread(hit), filler, r.x), l.out().dims)};
}

Values index_reduce(Lowering& l) {
  const Rows r(l);
  const Reduction reduction = reduction_of(l.text(4), l.signature().op->name);
  const DType wide = compute_dtype(r.x.dtype());
  const Value x = hlo::convert(r.x, wide);
  const bool include_self = l.flag(5);
  const Value counts = r.counts(DType::S64);
  const Value start = include_self ? x
                                   : hlo::select(r.spread(hlo::greater(counts, 0)),
                                                 reduction_identity(l.b, reduction, x.type()), x);
  Value y = scatter_rows(start, r.dim, r.index, r.source(l, 3, wide), combine_of(reduction));
  if (reduction == Reduction::Mean) {
    const Value divisor =
        include_self ? counts + 1 : hlo::max(counts, hlo::one(l.b, counts.type()));
    y = divide_for_mean(y, r.spread(hlo::convert(divisor, wide)));
  }
  return {hlo::reshape(hlo::convert(y, r.x.dtype()), l.out().dims)};
}

// --- the flattened tensor ------------------------------------------------------------------

Values take(Lowering& l) {
  const Value x = flatten(l.in(0));
  return {take_rows(x, 0, wrap_index(l.in(1), x.dim(0)))};
}

Values put(Lowering& l) {
  const Value x = l.in(0);
  const Value index = wrap_index(flatten(l.in(1)), x.type().elements());
  const Value source = flatten(cast(l.in(2), x.dtype()));
  if (!l.flag(3)) {
    return {hlo::reshape(scatter_rows(flatten(x), 0, index, source, replace), x.dims())};
  }
  const Value sum = summed(flatten(x), source, [&](const Value& to, const Value& what) {
    return scatter_rows(to, 0, index, what, accumulate);
  });
  return {hlo::reshape(sum, x.dims())};
}

// Where each true element of a flat mask stands among the true ones.
Value rank_in_mask(const Value& mask) { return running_sum(hlo::convert(mask, DType::S64), 0) - 1; }

Values masked_scatter(Lowering& l) {
  const hlo::Type type = l.out();
  const Value x = hlo::broadcast_to(l.in(0), type.dims);
  const Value mask = hlo::broadcast_to(cast(l.in(1), DType::Pred), type.dims);
  const Value source = flatten(cast(l.in(2), type.dtype));
  if (type.elements() == 0 || source.dim(0) == 0) return {x};
  const Value values = take_rows(source, 0, rank_in_mask(flatten(mask)));
  return {hlo::select(mask, hlo::reshape(values, type.dims), x)};
}

Values masked_scatter_backward(Lowering& l) {
  const hlo::Type type = l.out();
  const Value grad = l.in(0);
  const Value mask = flatten(hlo::broadcast_to(cast(l.in(1), DType::Pred), grad.dims()));
  if (type.elements() == 0 || grad.type().elements() == 0) return {hlo::zero(l.b, type)};
  const Value line = hlo::zero(l.b, {type.dtype, {type.elements()}});
  const Value dropped = hlo::splat_int(l.b, type.elements(), mask.type().with(DType::S64));
  const Value position = hlo::select(mask, rank_in_mask(mask), dropped);
  return {hlo::reshape(
      scatter_rows(line, 0, position, flatten(cast(grad, type.dtype)), replace, true), type.dims)};
}

Values nonzero_static(Lowering& l) {
  const hlo::Type type = l.out();
  const Value x = l.in(0);
  const int64_t size = type.dims[0];
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  const Value fill = hlo::splat_int(l.b, l.integer(2), type);
  if (x.type().elements() == 0) return {fill};
  const Value mask = flatten(cast(x, DType::Pred));
  const Value dropped = hlo::splat_int(l.b, size, mask.type().with(DType::S64));
  const Value where = hlo::select(mask, rank_in_mask(mask), dropped);
  const hlo::Type line{DType::S64, {size}};
  const Value flat = scatter_rows(hlo::splat_int(l.b, -1, line), 0, where,
                                  hlo::iota(l.b, dropped.type(), 0), replace, true);
  Values columns;
  int64_t stride = 1;
  for (int64_t i = x.rank() - 1; i >= 0; --i) {
    const Value at = flat / hlo::splat_int(l.b, stride, line);
    columns.insert(columns.begin(), hlo::rem(at, hlo::splat_int(l.b, x.dim(i), line)));
    stride *= x.dim(i);
  }
  const Dims rows = {0};
  const Value found = hlo::broadcast_in_dim(hlo::greater_equal(flat, 0), type.dims, rows);
  return {hlo::select(found, stack(columns, 1), fill)};
}

}  // namespace

// --- reductions by name, shared with scatter_reduce ----------------------------------------

Reduction reduction_of(std::string_view name, std::string_view op) {
  if (name == "sum" || name == "add") return Reduction::Sum;
  if (name == "prod" || name == "multiply") return Reduction::Prod;
  if (name == "mean") return Reduction::Mean;
  if (name == "amax") return Reduction::Max;
  if (name == "amin") return Reduction::Min;
  throw std::invalid_argument(std::string(op) +
                              ": expected reduce to be sum, prod, mean, amax or amin, got '" +
                              std::string(name) + "'.");
}

Value reduction_identity(hlo::Builder& b, Reduction reduction, const hlo::Type& type) {
  switch (reduction) {
    case Reduction::Prod:
      return hlo::one(b, type);
    case Reduction::Max:
      return hlo::lowest(b, type);
    case Reduction::Min:
      return hlo::highest(b, type);
    default:
      return hlo::zero(b, type);
  }
}

hlo::Combine combine_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::Prod:
      return
          [](const Value& a, const Value& b) { return a.dtype() == DType::Pred ? a & b : a * b; };
    case Reduction::Max:
      return hlo::max;
    case Reduction::Min:
      return hlo::min;
    default:
      return accumulate;
  }
}

Value divide_for_mean(const Value& sum, const Value& count) {
  if (!hlo::is_integer(sum.dtype())) return sum / count;
  const Value quotient = sum / count;
  const Value rounded_up = hlo::not_equal(hlo::rem(sum, count), 0) & hlo::less(sum, 0);
  return hlo::select(rounded_up, quotient - 1, quotient);
}

void register_index(Registry& r) {
  r.add("aten::index.Tensor", index);
  r.add("aten::_unsafe_index.Tensor", index);
  for (const char* name : {"aten::index_put", "aten::_index_put_impl", "aten::_unsafe_index_put"}) {
    r.add(name, index_put);
  }
  r.add("aten::_unsafe_masked_index", unsafe_masked_index);
  r.add("aten::_unsafe_masked_index_put_accumulate", unsafe_masked_index_put_accumulate);
  r.add("aten::index_select", index_select);
  r.add("aten::index_add", index_add);
  r.add("aten::index_copy", index_copy);
  r.add("aten::index_fill.int_Scalar", index_fill);
  r.add("aten::index_fill.int_Tensor", index_fill);
  r.add("aten::index_reduce", index_reduce);
  r.add("aten::take", take);
  r.add("aten::put", put);
  r.add("aten::masked_scatter", masked_scatter);
  r.add("aten::masked_scatter_backward", masked_scatter_backward);
  r.add("aten::nonzero_static", nonzero_static);
  register_index_scatter(r);
  register_index_embedding(r);
}

}  // namespace torch_xla::ops
