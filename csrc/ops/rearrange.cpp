#include "ops/rearrange.h"

#include "ops/common.h"

namespace torch_xla::ops {

using hlo::Dims;
using hlo::Value;
using hlo::Values;

Value insert_dim(const Value& x, int64_t dim) {
  Dims dims = x.dims();
  dims.insert(dims.begin() + dim, 1);
  return hlo::reshape(x, dims);
}

Value remove_dim(const Value& x, int64_t dim) {
  Dims dims = x.dims();
  dims.erase(dims.begin() + dim);
  return hlo::reshape(x, dims);
}

Value move_dim(const Value& x, int64_t from, int64_t to) {
  std::vector<int64_t> order = all_dims(x.rank());
  order.erase(order.begin() + from);
  order.insert(order.begin() + to, from);
  return hlo::transpose(x, order);
}

Value split_dim(const Value& x, int64_t dim, const Dims& sizes) {
  Dims dims = x.dims();
  dims.erase(dims.begin() + dim);
  dims.insert(dims.begin() + dim, sizes.begin(), sizes.end());
  return hlo::reshape(x, dims);
}

Value merge_dims(const Value& x, int64_t dim, int64_t count) {
  Dims dims = x.dims();
  int64_t merged = 1;
  for (int64_t i = 0; i < count; ++i) merged *= dims[dim + i];
  dims.erase(dims.begin() + dim, dims.begin() + dim + count);
  dims.insert(dims.begin() + dim, merged);
  return hlo::reshape(x, dims);
}

Value flatten(const Value& x) { return hlo::reshape(x, {x.type().elements()}); }
Value at_least_1d(const Value& x) { return x.rank() == 0 ? hlo::reshape(x, {1}) : x; }

Value pad_dim(const Value& x, const Value& filler, int64_t dim, int64_t low, int64_t high,
              int64_t interior) {
  Dims lows(x.rank(), 0), highs(x.rank(), 0), interiors(x.rank(), 0);
  lows[dim] = low;
  highs[dim] = high;
  interiors[dim] = interior;
  return hlo::pad(x, filler, lows, highs, interiors);
}

Value pad_dim(const Value& x, int64_t dim, int64_t low, int64_t high, int64_t interior) {
  return pad_dim(x, hlo::zero(x.builder(), {x.dtype(), {}}), dim, low, high, interior);
}

Value stack(std::span<const Value> parts, int64_t dim) {
  Values widened;
  for (const Value& part : parts) widened.push_back(insert_dim(part, dim));
  return hlo::concatenate(widened, dim);
}

Value overwrite(const Value& x, const Value& update, std::span<const int64_t> starts) {
  if (update.dims() == x.dims()) return update;
  if (update.type().elements() == 0) return x;
  Values positions;
  for (const int64_t start : starts) {
    positions.push_back(hlo::scalar_int(x.builder(), start, hlo::DType::S64));
  }
  return hlo::dynamic_update_slice(x, update, positions);
}

}  // namespace torch_xla::ops
