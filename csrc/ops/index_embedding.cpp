// Tables looked up by row: embedding, embedding_bag, their gradients, and one_hot.
#include "ops/common.h"
#include "ops/distance.h"
#include "ops/gather.h"
#include "ops/lowering.h"
#include "ops/meta.h"
#include "ops/rearrange.h"
#include "ops/rules.h"
#include "ops/value_checks.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

Values embedding(Lowering& l) { return {take_rows(l.in(0), 0, l.in(1))}; }

// `index` with the entries equal to `padding` sent past the end of a dimension of `size`, so that
// a scatter drops them.
Value without_padding(const Value& index, int64_t padding, int64_t size) {
  if (padding < 0) return index;
  return hlo::select(hlo::equal(index, static_cast<double>(padding)),
                     hlo::splat_int(index.builder(), size, index.type()), index);
}

// Counts how often each of `size` rows is named.
Value row_counts(const Value& index, int64_t size, DType dtype) {
  hlo::Builder& b = index.builder();
  return scatter_rows(hlo::zero(b, {dtype, {size}}), 0, index,
                      hlo::one(b, index.type().with(dtype)), hlo::add);
}

// One number for each row, in the shape of the rows themselves.
Value per_row(const Value& numbers, const Value& rows) {
  return hlo::broadcast_in_dim(numbers, rows.dims(), all_dims(numbers.rank()));
}

Values embedding_dense_backward(Lowering& l) {
  const hlo::Type type = l.out();
  const int64_t vocabulary = type.dims[0];
  const DType wide = compute_dtype(type.dtype);
  const Value index = without_padding(l.in(1), l.integer(3), vocabulary);
  Value grad = cast(l.in(0), wide);
  if (grad.type().elements() == 0) return {hlo::zero(l.b, type)};
  if (l.flag(4)) {
    grad = grad / per_row(take_rows(row_counts(index, vocabulary, wide), 0, index), grad);
  }
  return result(l, scatter_rows(hlo::zero(l.b, type.with(wide)), 0, index, grad, hlo::add));
}

// Rows that are named and longer than max_norm are shortened to it.
Values embedding_renorm(Lowering& l) {
  const Value table = l.in(0);
  const Value index = flatten(l.in(1));
  if (index.dim(0) == 0) return {table};
  const DType wide = compute_dtype(table.dtype());
  const Value rows = hlo::convert(take_rows(table, 0, index), wide);
  const Dims columns = {1};
  const Value norm = vector_norm(rows, columns, l.floating(3));
  const double limit = l.floating(2);
  const Value scale =
      hlo::select(hlo::greater(norm, limit), limit / (norm + 1e-7), hlo::like(norm, 1));
  // A row that is named twice is written twice with the same numbers.
  return {scatter_rows(table, 0, index, hlo::convert(rows * per_row(scale, rows), table.dtype()),
                       replace)};
}

// --- embedding_bag -------------------------------------------------------------------------

enum Mode : int64_t { kSum, kMean, kMax };

// Results: output, offset2bag, bag_size, max_indices.
Values embedding_bag(Lowering& l) {
  const Value table = l.in(0), index = l.in(1), offsets = l.in(2);
  const hlo::Type type = l.out(0);
  const int64_t mode = l.integer(4), padding = l.integer(8);
  const int64_t bags = type.dims[0], count = index.dim(0);
  const DType wide = compute_dtype(table.dtype());
  if (count == 0 || bags == 0) {
    Values empty;
    for (size_t i = 0; i < 4; ++i) empty.push_back(hlo::zero(l.b, l.out(i)));
    return empty;
  }
  // A bag starts at each offset; an offset at the end of `index` starts an empty one.
  const Value starts = row_counts(hlo::slice_dim(offsets, 0, 0, bags), count, index.dtype());
  const Value bag = running_sum(starts, 0) - 1;
  Value kept = bag;
  if (padding >= 0) {
    kept = hlo::select(hlo::equal(index, static_cast<double>(padding)),
                       hlo::splat_int(l.b, bags, bag.type()), bag);
  }
  const Value sizes = row_counts(kept, bags, DType::S64);

  Value rows = hlo::convert(take_rows(table, 0, index), wide);
  if (l.has(6)) rows = rows * per_row(cast(l.in(6), wide), rows);
  const hlo::Type wide_type = type.with(wide);
  Value out, max_indices = hlo::zero(l.b, l.out(3));
  if (mode == kMax) {
    const Value most = scatter_rows(hlo::lowest(l.b, wide_type), 0, kept, rows, hlo::max);
    // The first row of the bag that has the greatest value.
    const hlo::Type where = rows.type().with(DType::S64);
    const Value here = hlo::iota(l.b, where, 0);
    const Value best = take_rows(most, 0, bag);
    const Value tied = hlo::equal(rows, best) | hlo::is_nan(rows);
    const Value none = hlo::splat_int(l.b, count, where);
    const Value first = scatter_rows(hlo::splat_int(l.b, count, wide_type.with(DType::S64)), 0,
                                     kept, hlo::select(tied, here, none), hlo::min);
    const Value filled = per_row(hlo::greater(sizes, 0), most);
    out = hlo::select(filled, most, 0);
    if (l.out(3).dims == type.dims) {
      const Value named = cast(take_rows(index, 0, first), l.out(3).dtype);
      max_indices = hlo::select(filled, named, 0);
    }
  } else {
    out = scatter_rows(hlo::zero(l.b, wide_type), 0, kept, rows, hlo::add);
    if (mode == kMean) {
      out = out / per_row(hlo::convert(hlo::max(sizes, hlo::one(l.b, sizes.type())), wide), out);
    }
  }
  const hlo::Type sizes_type = l.out(2);
  const Value all_sizes =
      cast(sizes_type.dims.at(0) == bags ? sizes : pad_dim(sizes, 0, 0, sizes_type.dims[0] - bags),
           sizes_type.dtype);
  const hlo::Type bag_type = l.out(1);
  return {hlo::convert(out, type.dtype),
          bag_type.elements() == 0 ? hlo::zero(l.b, bag_type) : cast(bag, bag_type.dtype),
          all_sizes, max_indices};
}

Values embedding_bag_dense_backward(Lowering& l) {
  const hlo::Type type = l.out();
  const int64_t vocabulary = type.dims[0], mode = l.integer(7);
  const DType wide = compute_dtype(type.dtype);
  const Value grad = cast(l.in(0), wide), sizes = l.in(3);
  const Value blank = hlo::zero(l.b, type.with(wide));
  if (grad.type().elements() == 0 || l.in(1).dim(0) == 0) return {hlo::zero(l.b, type)};
  const int64_t bags = grad.dim(0);
  const Value bag_sizes = hlo::slice_dim(sizes, 0, 0, bags);
  if (mode == kMax) {
    const Value named = l.in(4);
    const Value filled = per_row(hlo::greater(bag_sizes, 0), named);
    const Value index = hlo::select(filled, named, hlo::splat_int(l.b, vocabulary, named.type()));
    return result(l, scatter_along(blank, 0, index, grad, hlo::add, l.target()));
  }
  const Value index = without_padding(l.in(1), l.integer(9), vocabulary);
  const Value bag = l.in(2);
  Value rows = grad;
  if (mode == kMean) {
    const Value divisor = hlo::max(bag_sizes, hlo::one(l.b, bag_sizes.type()));
    rows = rows / per_row(hlo::convert(divisor, wide), rows);
  }
  rows = take_rows(rows, 0, bag);
  if (l.has(8)) rows = rows * per_row(cast(l.in(8), wide), rows);
  if (l.flag(6)) {
    rows = rows / per_row(take_rows(row_counts(index, vocabulary, wide), 0, index), rows);
  }
  return result(l, scatter_rows(blank, 0, index, rows, hlo::add));
}

Values embedding_bag_weights_backward(Lowering& l) {
  const Value index = l.in(2);
  const DType wide = compute_dtype(l.out().dtype);
  if (index.dim(0) == 0) return {hlo::zero(l.b, l.out())};
  const Value rows = hlo::convert(take_rows(l.in(1), 0, index), wide);
  const Value grads = hlo::convert(take_rows(l.in(0), 0, l.in(4)), wide);
  const Dims columns = {1};
  Value weights = reduce_sum(rows * grads, columns);
  if (l.integer(6) >= 0) {
    weights = hlo::select(hlo::equal(index, static_cast<double>(l.integer(6))),
                          hlo::like(weights, 0), weights);
  }
  return result(l, weights);
}

// --- one_hot -------------------------------------------------------------------------------

Values one_hot(Lowering& l) {
  const hlo::Type type = l.out();
  const Value x = hlo::convert(l.in(0), DType::S64);
  const Value spread = hlo::broadcast_in_dim(x, type.dims, all_dims(x.rank()));
  return result(
      l, hlo::convert(hlo::equal(spread, hlo::iota(l.b, spread.type(), x.rank())), type.dtype));
}

bool is_index(const at::Tensor& x) {
  return x.dim() == 1 && (x.scalar_type() == at::kInt || x.scalar_type() == at::kLong);
}

// (weight, indices, offsets, scale_grad_by_freq, mode, sparse, per_sample_weights,
// include_last_offset, padding_idx) -> (bags, offset2bag, bag_size, max_indices)
void embedding_bag_meta(MetaCall& call) {
  // Integers of two dtypes become int64, as in the CPU kernels.
  if (call.tensor(1).scalar_type() != call.tensor(2).scalar_type()) {
    for (const size_t k : {1, 2}) call[k] = call.tensor(k).to(at::kLong);
  }
  const at::Tensor weight = call.tensor(0), indices = call.tensor(1), offsets = call.tensor(2);
  const int64_t mode = call[4].toInt();
  const int64_t bags = offsets.numel() - (call[7].toBool() ? 1 : 0);
  bool usual = weight.is_floating_point() && weight.dim() == 2 && is_index(indices) &&
               is_index(offsets) && bags >= 0;
  if (call.has(6)) {
    const at::Tensor each = call.tensor(6);
    usual = usual && mode == kSum && each.dim() == 1 && each.numel() == indices.numel();
  }
  if (!usual) return call.pytorch();
  const std::vector<int64_t> largest =
      mode == kMax ? std::vector<int64_t>{bags, weight.size(1)} : std::vector<int64_t>{0};
  call.results({meta_of_sizes(weight, {bags, weight.size(1)}),
                meta_of_sizes(indices, {indices.numel()}),
                meta_of_sizes(indices, {offsets.numel()}), meta_of_sizes(indices, largest)});
}

// (grad, indices, offset2bag, bag_size, maximum_indices, num_weights, ..)
void embedding_bag_dense_backward_meta(MetaCall& call) {
  const at::Tensor grad = call.tensor(0);
  if (!grad.is_floating_point() || grad.dim() != 2) return call.pytorch();
  call.results({meta_of_sizes(grad, {call[5].toInt(), grad.size(1)})});
}

// (grad, weight, indices, offsets, offset2bag, mode, ..)
void embedding_bag_weights_backward_meta(MetaCall& call) {
  const at::Tensor grad = call.tensor(0), weight = call.tensor(1), indices = call.tensor(2);
  const bool usual = call[5].toInt() == kSum && grad.dim() == 2 && weight.dim() == 2 &&
                     weight.size(1) == grad.size(1) && indices.dim() == 1;
  if (!usual) return call.pytorch();
  call.results({meta_of_sizes(grad, {indices.numel()})});
}

// (table, indices, ..)
bool rows(const KnownArguments& a) { return leaves(a, a[1], {0, size_of_dim(a.tensor(0), 0)}); }

// (table, indices, offsets, ..), of which the shapes are looked at as well
bool bags(const KnownArguments& a) {
  const at::Tensor &table = a.tensor(0), &indices = a.tensor(1);
  const at::Tensor& offsets = a.tensor(2);
  // PyTorch's CPU kernel takes these and writes beyond its memory.
  TORCH_CHECK(indices.dim() != 2, "embedding_bag: expected indices of one dimension, got ",
              indices.sizes(), ". Call torch.nn.functional.embedding_bag, which flattens them.");
  if (table.dim() != 2 || indices.dim() != 1 || offsets.dim() != 1 || rows(a)) return true;
  const std::optional<at::Tensor> known = a.known(offsets);
  if (!known || known->numel() == 0) return false;
  return known->select(0, 0).item<int64_t>() != 0 ||
         known->select(0, -1).item<int64_t>() > indices.numel();
}

}  // namespace

namespace rules {

const RuleFunction one_hot = ops::one_hot;

}  // namespace rules

const Rules index_embedding_rules([](Registry& r) {
  r.add("aten::embedding", embedding);
  r.add("aten::embedding_dense_backward", embedding_dense_backward);
  r.add("aten::embedding_renorm", embedding_renorm);
  r.add("aten::_embedding_bag", embedding_bag);
  r.add("aten::_embedding_bag_forward_only", embedding_bag);
  r.add("aten::_embedding_bag_dense_backward", embedding_bag_dense_backward);
  r.add("aten::_embedding_bag_per_sample_weights_backward", embedding_bag_weights_backward);

  for (const char* name : {"aten::embedding", "aten::embedding_renorm"}) {
    r.all(name).suspects_values = rows;
  }
  for (const char* name : {"aten::_embedding_bag", "aten::_embedding_bag_forward_only"}) {
    r.all(name) = {.meta = embedding_bag_meta, .suspects_values = bags};
  }
  r.all("aten::_embedding_bag_dense_backward").meta = embedding_bag_dense_backward_meta;
  r.all("aten::_embedding_bag_per_sample_weights_backward").meta =
      embedding_bag_weights_backward_meta;
});

}  // namespace torch_xla::ops
