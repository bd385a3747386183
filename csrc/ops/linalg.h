// Matrices, which are the last two dimensions, one for each position of the others (the batch).
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "ops/common.h"
#include "ops/lowering.h"
#include "ops/shape.h"

namespace torch_xla::ops {

inline int64_t rows_of(const hlo::Value& x) { return x.dim(x.rank() - 2); }
inline int64_t columns_of(const hlo::Value& x) { return x.dim(x.rank() - 1); }
inline hlo::Dims batch_of(const hlo::Value& x) { return {x.dims().begin(), x.dims().end() - 2}; }
inline hlo::Dims with(hlo::Dims batch, std::initializer_list<int64_t> sizes) {
  batch.insert(batch.end(), sizes);
  return batch;
}
inline hlo::Value with_batch(const hlo::Value& x, const hlo::Dims& batch) {
  return hlo::broadcast_to(x, with(batch, {rows_of(x), columns_of(x)}));
}

inline hlo::Value zeros_like(const hlo::Value& x) { return hlo::zero(x.builder(), x.type()); }
inline hlo::Value ones_like(const hlo::Value& x) { return hlo::one(x.builder(), x.type()); }
// s32 positions in the matrices of x's size.
inline hlo::Value row_positions(const hlo::Value& x) {
  return hlo::iota(x.builder(), {hlo::DType::S32, x.dims()}, x.rank() - 2);
}
inline hlo::Value column_positions(const hlo::Value& x) {
  return hlo::iota(x.builder(), {hlo::DType::S32, x.dims()}, x.rank() - 1);
}
inline hlo::Value last_positions(const hlo::Value& x) {
  return hlo::iota(x.builder(), {hlo::DType::S32, x.dims()}, x.rank() - 1);
}
inline hlo::Value on_diagonal(const hlo::Value& x) {
  return hlo::equal(row_positions(x), column_positions(x));
}
// x, and zero outside of the lower or upper triangle.
hlo::Value on_triangle(const hlo::Value& x, bool lower);
inline hlo::Value identity_like(const hlo::Value& x) {
  return hlo::convert(on_diagonal(x), x.dtype());
}

inline hlo::Value transposed(const hlo::Value& x) {
  return move_dim(x, x.rank() - 2, x.rank() - 1);
}
inline hlo::Value adjoint(const hlo::Value& x) { return conjugate(transposed(x)); }

hlo::Value product(const hlo::Value& x, const hlo::Value& y);

// A value for each matrix, row or column, over all of x; `left_out` counts dimensions from the end.
hlo::Value over(const hlo::Value& value, const hlo::Value& x,
                std::initializer_list<int64_t> left_out);
// Whether positions are `i` (0-dim).
inline hlo::Value is_at(const hlo::Value& positions, const hlo::Value& i) {
  return hlo::equal(positions, hlo::broadcast_to(i, positions.dims()));
}
// `count` elements along a dimension from `first` (0-dim) on; and x with others there.
hlo::Value cut(const hlo::Value& x, int64_t dim, const hlo::Value& first, int64_t count);
hlo::Value write(const hlo::Value& x, const hlo::Value& part, int64_t dim, const hlo::Value& first);
// Element `i` along a dimension, which goes; and x with another element there.
hlo::Value pick(const hlo::Value& x, int64_t dim, const hlo::Value& i);
hlo::Value put(const hlo::Value& x, int64_t dim, const hlo::Value& i, const hlo::Value& element);
// The one element along a dimension where `chosen` holds, without touching others.
hlo::Value only(const hlo::Value& chosen, const hlo::Value& x, int64_t dim);
inline hlo::Value diagonal(const hlo::Value& x) { return only(on_diagonal(x), x, x.rank() - 2); }

// The sums of the products of each row of x with a vector.
hlo::Value row_products(const hlo::Value& x, const hlo::Value& vector);

// Reflectors are LAPACK's: H = I - tau v v^H, where v is 1 in a place and 0 before it. One leaves
// of a column, from row `here` on, one number there.
struct Reflector {
  hlo::Value v, tau;
  hlo::Value stored;  // the column, with v and the number in place of what they stand for
};
Reflector reflector_of(const hlo::Value& column, const hlo::Value& here);
// Several: each vector is 1 on the diagonal and lies below it; what else is there is not read.
struct Reflectors {
  hlo::Value vectors, tau;
};
// Q x, or Q^H x, where Q is the product of the reflectors.
hlo::Value apply(const Reflectors& q, const hlo::Value& x, bool of_adjoint);

// `count` orthonormal columns of which the first span the columns of x; where those of x are
// dependent, or end, others follow.
hlo::Value orthonormal_basis(const hlo::Value& x, int64_t count);
// R of x = Q R, without the rows below the diagonal.
hlo::Value triangle_of(const hlo::Value& x);

// Rounds 0, 1, .. of a loop: (number, state) -> state. The number is a 0-dim s32.
using Round = std::function<hlo::Values(const hlo::Value&, std::span<const hlo::Value>)>;
hlo::Values repeat(int64_t count, hlo::Values state, const Round& round);

// Columns of a matrix in panels: loops over columns then touch no more than a panel, and what is
// left are products of matrices. The last panel may be wider than what is left of the columns.
struct Panels {
  int64_t width, count;
  explicit Panels(int64_t columns)
      : width(std::clamp<int64_t>(columns, 1, 32)), count((columns + width - 1) / width) {}
  int64_t whole() const { return width * count; }
};
// The first rows and columns of x, with zeros where it has none.
inline hlo::Value grown(const hlo::Value& x, int64_t rows, int64_t columns) {
  return pad_dim(pad_dim(x, x.rank() - 2, 0, rows - rows_of(x)), x.rank() - 1, 0,
                 columns - columns_of(x));
}

}  // namespace torch_xla::ops
