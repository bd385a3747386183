// Distances between rows (cdist, pdist, dist), renorm and the cross product.
#include "ops/distance.h"

#include <array>
#include <cmath>

#include <ATen/ExpandUtils.h>

#include "ops/common.h"
#include "ops/gather.h"
#include "ops/linalg.h"
#include "ops/lowering.h"
#include "ops/meta.h"
#include "ops/rearrange.h"

namespace torch_xla::ops {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

Value vector_norm(const Value& x, std::span<const int64_t> dims, double p) {
  if (p == 2) return hlo::sqrt(reduce_sum(hlo::square(x), dims));
  const Value size = hlo::abs(x);
  if (p == 0) return reduce_sum(hlo::convert(hlo::not_equal(size, 0), x.dtype()), dims);
  if (p == 1) return reduce_sum(size, dims);
  if (std::isinf(p)) return p > 0 ? reduce_max(size, dims) : reduce_min(size, dims);
  const Value total = reduce_sum(hlo::pow(size, hlo::like(size, p)), dims);
  return hlo::pow(total, hlo::like(total, 1 / p));
}

namespace {

// x1 (..., P, M) and x2 (..., R, M) as differences (..., P, R, M), which XLA never stores.
Value differences(const Value& x1, const Value& x2, Dims batch) {
  const int64_t rows = x1.dim(x1.rank() - 2), columns = x2.dim(x2.rank() - 2);
  Dims dims = std::move(batch);
  dims.insert(dims.end(), {rows, columns, x1.dim(x1.rank() - 1)});
  return hlo::broadcast_to(insert_dim(x1, x1.rank() - 1), dims) -
         hlo::broadcast_to(insert_dim(x2, x2.rank() - 2), dims);
}

Values cdist(Lowering& l) {
  const hlo::Type type = l.out();
  const DType wide = compute_dtype(type.dtype);
  const Value x1 = cast(l.in(0), wide), x2 = cast(l.in(1), wide);
  if (type.elements() == 0 || x1.dim(x1.rank() - 1) == 0) return {hlo::zero(l.b, type)};
  const Value d = differences(x1, x2, batch_of(type));
  const Dims last = {d.rank() - 1};
  return result(l, vector_norm(d, last, l.floating(2)));
}

// The derivative of the distance by each coordinate of the difference; zero where it has none.
Value distance_slope(const Value& d, const Value& distance, double p) {
  const Value zero = hlo::zero(d.builder(), d.type());
  const Value sign = hlo::unary("sign", d);
  if (p == 0) return zero;
  if (p == 1) return sign;
  if (std::isinf(p)) return hlo::select(hlo::equal(hlo::abs(d), distance), sign, zero);
  const Value apart = hlo::not_equal(distance, 0);
  if (p == 2) return hlo::select(apart, d / distance, zero);
  const auto raised = [&](const Value& v) { return hlo::pow(v, hlo::like(v, p - 1)); };
  const Value slope = sign * raised(hlo::abs(d)) / raised(distance);
  // Below 1 the slope at equal coordinates would be infinite.
  return hlo::select(apart & hlo::not_equal(d, 0), slope, zero);
}

Values cdist_backward(Lowering& l) {
  const hlo::Type type = l.out();
  const DType wide = compute_dtype(type.dtype);
  const Value x1 = cast(l.in(1), wide), x2 = cast(l.in(2), wide);
  const Value grad = cast(l.in(0), wide), distance = cast(l.in(4), wide);
  if (type.elements() == 0 || grad.type().elements() == 0) return {hlo::zero(l.b, type)};
  const Value d = differences(x1, x2, batch_of(distance.type()));
  const auto each = [&](const Value& v) {
    return hlo::broadcast_in_dim(v, d.dims(), all_dims(v.rank()));
  };
  const Value slope = distance_slope(d, each(distance), l.floating(3));
  const Dims columns = {d.rank() - 2};
  return result(l, reduce_sum(each(grad) * slope, columns));
}

// Row and column of each pair i < j of n rows, in order.
std::pair<Value, Value> pairs(hlo::Builder& b, int64_t n) {
  std::vector<int64_t> rows, columns;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = i + 1; j < n; ++j) {
      rows.push_back(i);
      columns.push_back(j);
    }
  }
  const hlo::Type type{DType::S64, {static_cast<int64_t>(rows.size())}};
  return {hlo::dense_ints(b, rows, type), hlo::dense_ints(b, columns, type)};
}

Values pdist(Lowering& l) {
  const hlo::Type type = l.out();
  const Value x = cast(l.in(0), compute_dtype(type.dtype));
  if (type.elements() == 0 || x.dim(1) == 0) return {hlo::zero(l.b, type)};
  const auto [rows, columns] = pairs(l.b, x.dim(0));
  const Value d = take_rows(x, 0, rows) - take_rows(x, 0, columns);
  const Dims last = {1};
  return result(l, vector_norm(d, last, l.floating(1)));
}

Values pdist_backward(Lowering& l) {
  const hlo::Type type = l.out();
  const DType wide = compute_dtype(type.dtype);
  const Value x = cast(l.in(1), wide), grad = cast(l.in(0), wide), distance = cast(l.in(3), wide);
  if (type.elements() == 0 || grad.type().elements() == 0) return {hlo::zero(l.b, type)};
  const auto [rows, columns] = pairs(l.b, x.dim(0));
  const Value d = take_rows(x, 0, rows) - take_rows(x, 0, columns);
  const auto each = [&](const Value& v) { return hlo::broadcast_in_dim(v, d.dims(), all_dims(1)); };
  const Value part = each(grad) * distance_slope(d, each(distance), l.floating(2));
  const Value sum = scatter_rows(hlo::zero(l.b, x.type()), 0, rows, part, hlo::add);
  return result(l, scatter_rows(sum, 0, columns, hlo::neg(part), hlo::add));
}

Values dist(Lowering& l) {
  const hlo::Type type = l.out();
  const Value a = l.in(0), b = l.in(1);
  const DType dtype = to_hlo(l.promoted({0, 1}));
  Dims dims = a.dims();
  if (b.rank() > a.rank()) dims.insert(dims.begin(), b.rank() - a.rank(), 1);
  for (int64_t i = 0; i < b.rank(); ++i) {
    int64_t& size = dims[dims.size() - b.rank() + i];
    if (size == 1) size = b.dim(i);
  }
  Value d = l.in(0, dtype, dims) - l.in(1, dtype, dims);
  d = hlo::is_complex(dtype) ? hlo::abs(d) : hlo::convert(d, compute_dtype(dtype));
  if (d.type().elements() == 0) return {hlo::zero(l.b, type)};
  return result(l, vector_norm(d, all_dims(d.rank()), l.attr(2).toScalar().toDouble()));
}

// Slices along `dim` that are longer than maxnorm are shortened to it.
Values renorm(Lowering& l) {
  const Value x = l.in(0);
  const int64_t dim = wrap_dim(l.integer(2), x.rank());
  if (x.type().elements() == 0) return {x};
  const DType wide = compute_dtype(hlo::real_part(x.dtype()));
  std::vector<int64_t> others = all_dims(x.rank());
  others.erase(others.begin() + dim);
  const Value size = hlo::is_complex(x.dtype()) ? hlo::abs(x) : hlo::convert(x, wide);
  const Value norm = vector_norm(size, others, l.attr(1).toScalar().toDouble());
  const Value limit = hlo::broadcast_to(l.number(3, wide), norm.dims());
  const Value scale =
      hlo::select(hlo::greater(norm, limit), limit / (norm + 1e-7), hlo::like(norm, 1));
  const Dims mapping = {dim};
  const Value factor = hlo::broadcast_in_dim(scale, x.dims(), mapping);
  if (hlo::is_complex(x.dtype())) return {x * hlo::convert(factor, x.dtype())};
  return result(l, hlo::convert(x, wide) * factor);
}

Values cross(Lowering& l) {
  const hlo::Type type = l.out();
  const DType wide = compute_dtype(type.dtype);
  const Value a = operand(l, 0, wide), b = operand(l, 1, wide);
  if (type.elements() == 0) return {hlo::zero(l.b, type)};
  const int64_t dim = wrap_dim(l.integer(2), type.rank());
  // Coordinates (i + 1, i + 2, i) of a vector.
  const auto turned = [dim](const Value& v, int64_t by) {
    const std::array<Value, 2> parts = {hlo::slice_dim(v, dim, by, 3),
                                        hlo::slice_dim(v, dim, 0, by)};
    return hlo::concatenate(parts, dim);
  };
  return result(l, turned(a, 1) * turned(b, 2) - turned(a, 2) * turned(b, 1));
}

// Returns whether distances of the rows of both are usual ones.
bool are_rows(const at::Tensor& x, const at::Tensor& y) {
  return x.dim() >= 2 && y.dim() >= 2 && x.size(-1) == y.size(-1) && x.is_floating_point() &&
         x.scalar_type() == y.scalar_type();
}

std::vector<int64_t> common_batch(const at::Tensor& x, const at::Tensor& y) {
  return at::infer_size(x.sizes().slice(0, x.dim() - 2), y.sizes().slice(0, y.dim() - 2));
}

// (x1, x2, p, compute_mode)
void cdist_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0), y = call.tensor(1);
  const bool known = call[3].isNone() || (call[3].toInt() >= 0 && call[3].toInt() <= 2);
  if (!are_rows(x, y) || !known || !(call[2].toDouble() >= 0)) return call.pytorch();
  std::vector<int64_t> sizes = common_batch(x, y);
  sizes.insert(sizes.end(), {x.size(-2), y.size(-2)});
  call.results({meta_of_sizes(x, sizes)});
}

// (grad, x1, x2, p, cdist)
void cdist_backward_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(1), y = call.tensor(2);
  if (!are_rows(x, y) || x.numel() == 0 || y.numel() == 0) return call.pytorch();
  std::vector<int64_t> sizes = common_batch(x, y);
  sizes.insert(sizes.end(), {x.size(-2), x.size(-1)});
  call.results({meta_of_sizes(x, sizes)});
}

// (self, p)
void pdist_meta(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  if (x.dim() != 2 || !x.is_contiguous()) return call.pytorch();
  call.results({meta_of_sizes(x, {x.size(0) * (x.size(0) - 1) / 2})});
}

// (grad, self, p, pdist)
void pdist_backward_meta(MetaCall& call) {
  if (!call.tensor(1).is_contiguous() || !call.tensor(3).is_contiguous()) return call.pytorch();
  like_second(call);
}

}  // namespace

const Rules distance_rules([](Registry& r) {
  r.add("aten::_cdist_forward", cdist);
  r.add("aten::_cdist_backward", cdist_backward);
  r.add("aten::_pdist_forward", pdist);
  r.add("aten::_pdist_backward", pdist_backward);
  // The order of a norm chooses the formula.
  r.add("aten::dist", dist).static_numbers = {2};
  r.add("aten::renorm", renorm).static_numbers = {1};
  r.add("aten::linalg_cross", cross);

  r.all("aten::_cdist_forward").meta = cdist_meta;
  r.all("aten::_cdist_backward").meta = cdist_backward_meta;
  r.all("aten::_pdist_forward").meta = pdist_meta;
  r.all("aten::_pdist_backward").meta = pdist_backward_meta;
});

}  // namespace torch_xla::ops
