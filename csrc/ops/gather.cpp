#include "ops/gather.h"

#include "ops/common.h"
#include "ops/rearrange.h"
#include "ops/scan.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;

// Dimensions of x other than `dim`, as they are numbered in the result of take_rows.
Dims window_dims(int64_t rank, int64_t dim, int64_t index_rank) {
  Dims dims;
  for (int64_t i = 0; i < rank; ++i) {
    if (i != dim) dims.push_back(i < dim ? i : i + index_rank - 1);
  }
  return dims;
}

// The position of each element of `index` in the flattened x. One that is out of range in `dim`
// stays out of range, so that it is dropped and does not land in a neighbouring row.
Value flat_positions(const Value& x, int64_t dim, const Value& index, bool keep_range) {
  hlo::Builder& b = x.builder();
  const Value wide = hlo::convert(index, DType::S64);
  const hlo::Type type = wide.type();
  int64_t stride = 1;
  Value position = hlo::zero(b, type);
  for (int64_t i = x.rank() - 1; i >= 0; --i) {
    if (x.dim(i) != 1 || i == dim) {
      const Value coordinate = i == dim ? wide : hlo::iota(b, type, i);
      position = position + coordinate * hlo::splat_int(b, stride, type);
    }
    stride *= x.dim(i);
  }
  if (!keep_range || x.type().elements() == x.dim(dim)) return position;
  const Value inside = hlo::greater_equal(wide, 0) & hlo::less(wide, x.dim(dim));
  return hlo::select(inside, position, hlo::splat_int(b, stride, type));
}

// x without the elements that no index can reach.
Value reachable(const Value& x, int64_t dim, const Value& index) {
  Dims start(x.rank(), 0), limit = index.dims(), stride(x.rank(), 1);
  limit[dim] = x.dim(dim);
  return hlo::slice(x, start, limit, stride);
}

std::vector<int64_t> dims_except(int64_t rank, int64_t dim) {
  std::vector<int64_t> dims = all_dims(rank);
  dims.erase(dims.begin() + dim);
  return dims;
}

Value running(const Value& x, int64_t dim, const Value& init, const hlo::Combine& combine) {
  if (x.type().elements() == 0) return x;
  if (x.builder().lacks().fixed_sizes) {  // a window's size is one
    const Join join = [&](std::span<const Value> a, std::span<const Value> b) {
      return hlo::Values{combine(a[0], b[0])};
    };
    return scan_in_loop({x}, {init}, dim, join)[0];
  }
  hlo::Window window(x.rank());
  window.sizes[dim] = x.dim(dim);
  window.pad_low[dim] = x.dim(dim) - 1;
  return hlo::reduce_window(x, init, window, combine);
}

}  // namespace

Value wrap_index(const Value& index, int64_t size) {
  if (index.dtype() == DType::Pred || hlo::is_unsigned(index.dtype())) {
    return hlo::convert(index, DType::S64);
  }
  if (hlo::bit_width(index.dtype()) < 32) return wrap_index(hlo::convert(index, DType::S64), size);
  return hlo::select(hlo::less(index, 0),
                     index + hlo::splat_int(index.builder(), size, index.type()), index);
}

Value take_rows(const Value& x, int64_t dim, const Value& index) {
  Dims dims = x.dims();
  dims.erase(dims.begin() + dim);
  dims.insert(dims.begin() + dim, index.dims().begin(), index.dims().end());
  const hlo::Type type = x.type().with(dims);
  if (type.elements() == 0 || x.type().elements() == 0) return hlo::zero(x.builder(), type);
  hlo::GatherDims d;
  d.offset_dims = window_dims(x.rank(), dim, index.rank());
  d.collapsed_slice_dims = {dim};
  d.start_index_map = {dim};
  d.index_vector_dim = index.rank();
  Dims sizes = x.dims();
  sizes[dim] = 1;
  return hlo::gather(x, index, d, sizes, type);
}

Value scatter_rows(const Value& x, int64_t dim, const Value& index, const Value& updates,
                   const hlo::Combine& combine, bool unique) {
  if (updates.type().elements() == 0) return x;
  hlo::ScatterDims d;
  d.update_window_dims = window_dims(x.rank(), dim, index.rank());
  d.inserted_window_dims = {dim};
  d.scatter_dims_to_operand_dims = {dim};
  d.index_vector_dim = index.rank();
  return hlo::scatter(x, index, updates, d, combine, false, unique);
}

Value take_along(const Value& x, int64_t dim, const Value& index, const Target& target) {
  const hlo::Type type = index.type().with(x.dtype());
  if (type.elements() == 0 || x.type().elements() == 0) return hlo::zero(x.builder(), type);
  const Value part = reachable(x, dim, index);
  hlo::GatherDims d;
  if (target.is_cpu()) {
    // XLA:CPU reads one flat array up to three times faster than a batched gather.
    d.collapsed_slice_dims = {0};
    d.start_index_map = {0};
    d.index_vector_dim = index.rank();
    const Dims one = {1};
    const Value last = hlo::splat_int(x.builder(), part.dim(dim) - 1, index.type());
    const Value inside = hlo::clamp(hlo::zero(x.builder(), index.type()), index, last);
    return hlo::gather(flatten(part), flat_positions(part, dim, inside, false), d, one, type);
  }
  d.operand_batching_dims = d.start_indices_batching_dims = dims_except(x.rank(), dim);
  d.collapsed_slice_dims = {dim};
  d.start_index_map = {dim};
  d.index_vector_dim = index.rank();
  return hlo::gather(part, index, d, Dims(x.rank(), 1), type);
}

Value scatter_along(const Value& x, int64_t dim, const Value& index, const Value& updates,
                    const hlo::Combine& combine, const Target& target, bool unique) {
  if (updates.type().elements() == 0 || x.type().elements() == 0) return x;
  hlo::ScatterDims d;
  Dims other = x.dims(), other_index = index.dims();
  other[dim] = other_index[dim] = 0;
  if (target.is_cpu() || other != other_index) {
    d.inserted_window_dims = {0};
    d.scatter_dims_to_operand_dims = {0};
    d.index_vector_dim = 1;
    const Value positions = flatten(flat_positions(x, dim, index, true));
    const Value written =
        hlo::scatter(flatten(x), positions, flatten(updates), d, combine, false, unique);
    return hlo::reshape(written, x.dims());
  }
  d.input_batching_dims = d.scatter_indices_batching_dims = dims_except(x.rank(), dim);
  d.inserted_window_dims = {dim};
  d.scatter_dims_to_operand_dims = {dim};
  d.index_vector_dim = index.rank();
  return hlo::scatter(x, index, updates, d, combine, false, unique);
}

Value replace(const Value&, const Value& update) { return update; }

Value accumulate(const Value& current, const Value& update) {
  return current.dtype() == DType::Pred ? current | update : current + update;
}

Value running_sum(const Value& x, int64_t dim) {
  return running(x, dim, hlo::scalar(x.builder(), 0, x.dtype()), hlo::add);
}
Value running_max(const Value& x, int64_t dim) {
  return running(x, dim, hlo::lowest(x.builder(), {x.dtype(), {}}), hlo::max);
}

}  // namespace torch_xla::ops
