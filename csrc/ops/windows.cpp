#include "ops/windows.h"

#include <algorithm>

#include "ops/gather.h"
#include "ops/notation.h"
#include "ops/rearrange.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::Value;
using hlo::Values;

// More pieces than this in one result make the program longer than a gather or scatter is slow.
constexpr int64_t kMaxPieces = 64;

int64_t window_count(int64_t length, int64_t size, int64_t step, int64_t dilation) {
  return (length - (size - 1) * dilation - 1) / step + 1;
}

// Position i * step + k * dilation for every window i and element k.
Value window_positions(hlo::Builder& b, int64_t count, int64_t size, int64_t step,
                       int64_t dilation) {
  const hlo::Type type{hlo::DType::S64, {count, size}};
  return hlo::iota(b, type, 0) * static_cast<double>(step) +
         hlo::iota(b, type, 1) * static_cast<double>(dilation);
}

Value sum_of(const Values& parts) {
  Value sum = parts[0];
  for (size_t i = 1; i < parts.size(); ++i) sum = sum + parts[i];
  return sum;
}

}  // namespace

Value windows(const Value& x, int64_t dim, int64_t size, int64_t step, int64_t dilation) {
  const int64_t count = window_count(x.dim(dim), size, step, dilation);
  if (size == 0) {
    Dims dims = x.dims();
    dims[dim] = count;
    dims.insert(dims.begin() + dim + 1, 0);
    return hlo::zero(x.builder(), x.type().with(dims));
  }
  const int64_t overlap = (size + step - 1) / step;
  Values parts;
  if (dilation == 1 && overlap <= std::min(count, kMaxPieces)) {
    // Cut into blocks of `step`: a window is `overlap` neighbouring blocks.
    const int64_t blocks = count - 1 + overlap;
    const Value cut =
        split_dim(pad_dim(x, dim, 0, blocks * step - x.dim(dim)), dim, {blocks, step});
    for (int64_t q = 0; q < overlap; ++q) {
      parts.push_back(hlo::slice_dim(cut, dim, q, q + count));
    }
    return hlo::slice_dim(hlo::concatenate(parts, dim + 1), dim + 1, 0, size);
  }
  if (count <= std::min(size, kMaxPieces)) {
    const int64_t extent = (size - 1) * dilation + 1;
    for (int64_t i = 0; i < count; ++i) {
      parts.push_back(hlo::slice_dim(x, dim, i * step, i * step + extent, dilation));
    }
    return stack(parts, dim);
  }
  if (size <= kMaxPieces) {
    const int64_t extent = (count - 1) * step + 1;
    for (int64_t k = 0; k < size; ++k) {
      parts.push_back(hlo::slice_dim(x, dim, k * dilation, k * dilation + extent, step));
    }
    return stack(parts, dim + 1);
  }
  return take_rows(x, dim, window_positions(x.builder(), count, size, step, dilation));
}

Value overlap_add(const Value& x, int64_t dim, int64_t length, int64_t step, int64_t dilation) {
  const int64_t count = x.dim(dim), size = x.dim(dim + 1);
  Dims result_dims = x.dims();
  result_dims.erase(result_dims.begin() + dim + 1);
  result_dims[dim] = length;
  const hlo::Type type = x.type().with(result_dims);
  if (type.elements() == 0 || x.type().elements() == 0) return hlo::zero(x.builder(), type);
  const int64_t overlap = (size + step - 1) / step;
  Values parts;
  if (dilation == 1 && overlap <= std::min(count, kMaxPieces)) {
    const int64_t blocks = count - 1 + overlap;
    const Value cut =
        split_dim(pad_dim(x, dim + 1, 0, overlap * step - size), dim + 1, {overlap, step});
    for (int64_t q = 0; q < overlap; ++q) {
      const Value piece = remove_dim(hlo::slice_dim(cut, dim + 1, q, q + 1), dim + 1);
      parts.push_back(pad_dim(piece, dim, q, blocks - count - q));
    }
    return pad_dim(merge_dims(sum_of(parts), dim, 2), dim, 0, length - blocks * step);
  }
  if (count <= std::min(size, kMaxPieces)) {
    const int64_t extent = (size - 1) * dilation + 1;
    for (int64_t i = 0; i < count; ++i) {
      const Value piece = remove_dim(hlo::slice_dim(x, dim, i, i + 1), dim);
      parts.push_back(pad_dim(piece, dim, i * step, length - i * step - extent, dilation - 1));
    }
    return sum_of(parts);
  }
  if (size <= kMaxPieces) {
    const int64_t extent = (count - 1) * step + 1;
    for (int64_t k = 0; k < size; ++k) {
      const Value piece = remove_dim(hlo::slice_dim(x, dim + 1, k, k + 1), dim + 1);
      parts.push_back(pad_dim(piece, dim, k * dilation, length - k * dilation - extent, step - 1));
    }
    return sum_of(parts);
  }
  return scatter_rows(hlo::zero(x.builder(), type), dim,
                      window_positions(x.builder(), count, size, step, dilation), x, hlo::add);
}

}  // namespace torch_xla::ops
