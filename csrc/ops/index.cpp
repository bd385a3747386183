// Advanced indexing: index and index_put in all their forms, masks, index_select, index_add and the
// rest of the index_* family, take and put.
#include "ops/index.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <string>

#include <ATen/Context.h>
#include <ATen/ExpandUtils.h>

#include "lazy/operator.h"
#include "ops/common.h"
#include "ops/gather.h"
#include "ops/lowering.h"
#include "ops/meta.h"
#include "ops/rearrange.h"
#include "ops/value_checks.h"

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
    if (std::ssize(list) > rank_) {
      throw std::invalid_argument(l.signature().op->name + ": expected at most " +
                                  std::to_string(rank_) + " indices, got " +
                                  std::to_string(list.size()) + ".");
    }
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
    if (mask->first + mask->second.rank() > x.rank()) {
      throw std::invalid_argument(l.signature().op->name + ": expected a mask of at most " +
                                  std::to_string(x.rank() - mask->first) + " dimensions, got " +
                                  mask->second.type().str() + ".");
    }
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

Values put_at(Lowering& l) {
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

namespace {

// --- What PyTorch's Meta kernels leave out ------------------------------------------------

// (self, dim, index, source, ...) with nothing to write, or nowhere to write it. PyTorch's C++
// kernels look at the first slice of self and source, which an empty one lacks.
void write_of_slices(MetaCall& call) {
  const at::Tensor self = call.tensor(0), index = call.tensor(2), source = call.tensor(3);
  if (self.dim() == 0 || (self.numel() != 0 && source.numel() != 0)) return call.pytorch();
  const int64_t dim = call[1].toInt();
  TORCH_CHECK_INDEX(source.dim() == self.dim() && index.numel() == source.size(dim),
                    "expected as many indices as slices of source, got index of size ",
                    index.sizes(), " and source of size ", source.sizes(), ".");
  call.results({meta_of_sizes(self, self.sizes().vec())});
}

// (self, indices, values, accumulate, ..)
void check_index_put(const Arguments& a) {
  const at::ScalarType self = a.tensor(0).scalar_type();
  const at::Tensor& values = a.tensor(2);
  // One value under a mask is filled in, which converts it.
  if (values.numel() == 1 && !a[3].toBool()) {
    for (const c10::IValue& index : a[1].toListRef()) {
      if (index.isTensor() && index.toTensor().defined() && ops::is_mask(index.toTensor())) return;
    }
  }
  TORCH_CHECK(values.scalar_type() == self,
              "Index put requires the source and destination dtypes match, got ", self,
              " for the destination and ", values.scalar_type(), " for the source.");
}

// (self, mask, source)
void check_masked_scatter(const Arguments& a) {
  const at::ScalarType mask = a.tensor(1).scalar_type();
  TORCH_CHECK(mask == at::kBool,
              "masked_scatter_ only supports boolean masks, but got mask with "
              "dtype ",
              mask);
}

// (self, index, source, accumulate)
void check_put(const Arguments& a) {
  const int64_t self = a.tensor(0).numel();
  const int64_t index = a.tensor(1).numel();
  const int64_t source = a.tensor(2).numel();
  TORCH_CHECK_INDEX(source == index,
                    "put_(): Expected source and index to have the same number of elements, but "
                    "got source.numel() = ",
                    source, ", index.numel() = ", index);
  TORCH_CHECK_INDEX(self != 0 || index == 0, "put_(): Tried to put elements into an empty tensor");
}

// --- Numbers and values that its CPU kernels refuse -----------------------------------------

// (self, dim, index, value)
void check_filled_number(const Arguments& a) {
  const bool is_complex = a[3].isTensor() ? a.tensor(3).is_complex() : a[3].isComplexDouble();
  TORCH_CHECK(!is_complex || a.tensor(0).is_complex(),
              "index_fill_(): Converting complex Scalar to non-complex type is not supported");
}

// (self, index, source, accumulate); whether programs must be deterministic may change, too.
void check_order_of_puts(const Arguments& a) {
  if (!a[3].toBool()) at::globalContext().alertNotDeterministic("put_");
}

// (self, index, ..), of the flattened tensor
bool elements(const KnownArguments& a) {
  const int64_t end = a.tensor(0).numel();
  return leaves(a, a[1], {-end, end});
}

// Returns whether the mask at `dim` of self is known, and not as many of its elements are true as
// values have rows. Values without rows, or with one, go everywhere.
bool miscounts(const KnownArguments& a, const at::Tensor& self, const at::Tensor& mask, int64_t dim,
               const at::Tensor& values) {
  const int64_t trailing = self.dim() - dim - mask.dim(), row = values.dim() - 1 - trailing;
  if (row < 0 || values.size(row) == 1) return false;
  const std::optional<at::Tensor> known = a.known(mask);
  return known && known->count_nonzero().item<int64_t>() != values.size(row);
}

// (self, indices, ..), one for each of the first dimensions; of index_put, values follow
bool positions(const KnownArguments& a) {
  const at::Tensor& self = a.tensor(0);
  int64_t dim = 0;
  for (const c10::IValue& index : a[1].toListRef()) {
    const bool masks = index.isTensor() && ops::is_mask(index.toTensor());
    if (!masks && leaves(a, index, {-self.size(dim), self.size(dim)})) return true;
    if (masks && miscounts(a, self, index.toTensor(), dim, a.tensor(2))) return true;
    dim += masks ? index.toTensor().dim() : 1;
  }
  return false;
}

// (self, mask, source)
bool source_runs_out(const KnownArguments& a) {
  const std::optional<at::Tensor> mask = a.known(a.tensor(1));
  if (!mask || mask->numel() == 0) return false;
  const int64_t copies = std::max<int64_t>(a.tensor(0).numel() / mask->numel(), 1);
  return mask->count_nonzero().item<int64_t>() * copies > a.tensor(2).numel();
}

// masked_scatter(self, mask, source)
void masked_scatter_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0), mask = call.tensor(1);
  if (mask.scalar_type() != at::kBool || call.tensor(2).scalar_type() != x.scalar_type()) {
    return call.pytorch();
  }
  call.results({meta_of_sizes(x, at::infer_size(x.sizes(), mask.sizes()))});
}

// index_select(self, dim, index)
void index_select_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0), index = call.tensor(2);
  const bool integers = index.scalar_type() == at::kInt || index.scalar_type() == at::kLong;
  if (x.dim() == 0 || index.dim() != 1 || !integers) return call.pytorch();
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes[static_cast<size_t>(at::maybe_wrap_dim(call[1].toInt(), x.dim()))] = index.numel();
  call.results({meta_of_sizes(x, sizes)});
}

// take(self, index)
void take_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0), index = call.tensor(1);
  const bool usual = index.scalar_type() == at::kLong && (x.numel() != 0 || index.numel() == 0);
  if (!usual) return call.pytorch();
  call.results({meta_of_sizes(x, index.sizes().vec())});
}

}  // namespace

const Rules index_rules([](Registry& r) {
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
  r.add("aten::put", put_at);
  r.add("aten::masked_scatter", masked_scatter);
  r.add("aten::masked_scatter_backward", masked_scatter_backward);
  r.add("aten::nonzero_static", nonzero_static);

  r.all("aten::index") = {.suspects_values = positions, .takes_masks = true};
  r.all("aten::_unsafe_index").takes_masks = true;
  const Traits::Deprecated indices = {"index_put_", "tensor[indices] = tensor"};
  r.all("aten::index_put") = {.checks_call = check_index_put,
                              .suspects_values = positions,
                              .reads_elsewhere = true,
                              .writes_repeated = true,
                              .takes_masks = true,
                              .writes_expanded = indices};
  r.all("aten::_index_put_impl") = {.checks_call = check_index_put,
                                    .reads_elsewhere = true,
                                    .writes_repeated = true,
                                    .takes_masks = true,
                                    .writes_expanded = indices};
  r.all("aten::_unsafe_index_put") = {.checks_call = check_index_put, .takes_masks = true};
  r.all("aten::index_select") = {
      .meta = index_select_meta, .suspects_values = along_dim<>, .reads_elsewhere = true};
  r.all("aten::index_add") = {.meta = write_of_slices,
                              .meta_in_place = write_of_slices,
                              .checks_numbers = on_one_device,
                              .suspects_values = along_dim<>,
                              .narrow_floats = NarrowFloats::Exact,
                              .reads_elsewhere = true};
  r.all("aten::index_copy") = {.checks_numbers = on_one_device,
                               .suspects_values = along_dim<>,
                               .reads_elsewhere = true,
                               .autocast = Autocast::Widest};
  r.all("aten::index_fill") = {
      .checks_call = check_filled_number,
      .checks_numbers = check_filled_number,
      .suspects_values = along_dim<true>,
      .narrow_floats = NarrowFloats::Exact,
      .reads_elsewhere = true,
      .writes_repeated = true,
      .writes_expanded = Traits::Deprecated{"index_fill_", "tensor[mask] = scalar"}};
  r.all("aten::index_reduce") = {.meta = write_of_slices,
                                 .meta_in_place = write_of_slices,
                                 .suspects_values = along_dim<>,
                                 .reads_elsewhere = true};
  r.all("aten::take") = {.meta = take_meta, .suspects_values = elements, .reads_elsewhere = true};
  r.all("aten::put") = {.checks_call = check_put,
                        .checks_numbers = check_order_of_puts,
                        .suspects_values = elements,
                        .reads_elsewhere = true};
  r.all("aten::masked_scatter") = {.meta = masked_scatter_meta,
                                   .checks_call = check_masked_scatter,
                                   .suspects_values = source_runs_out};
  // The C++ code looks at values.
  r.all("aten::masked_scatter_backward").python_meta = true;
  r.all("aten::nonzero_static").layout = row_major;  // the Meta kernel has CUDA's
});

}  // namespace torch_xla::ops
