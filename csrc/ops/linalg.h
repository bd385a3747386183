// Matrices, which are the last two dimensions, one for each position of the others (the batch).
#pragma once

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <span>
#include <vector>

#include "ops/common.h"
#include "ops/lowering.h"
#include "ops/rearrange.h"

namespace torch_xla::ops {

inline int64_t rows_of(const hlo::Value& x) { return x.dim(x.rank() - 2); }
inline int64_t columns_of(const hlo::Value& x) { return x.dim(x.rank() - 1); }
inline hlo::Dims batch_of(const hlo::Value& x) { return {x.dims().begin(), x.dims().end() - 2}; }
inline hlo::Dims batch_of(const hlo::Type& type) {
  return {type.dims.begin(), type.dims.end() - 2};
}
inline hlo::Dims with(hlo::Dims batch, std::initializer_list<int64_t> sizes) {
  batch.insert(batch.end(), sizes);
  return batch;
}
inline hlo::Value with_batch(const hlo::Value& x, const hlo::Dims& batch) {
  return hlo::broadcast_to(x, with(batch, {rows_of(x), columns_of(x)}));
}

inline hlo::Value zeros_like(const hlo::Value& x) { return hlo::zero(x.builder(), x.type()); }
inline hlo::Value ones_like(const hlo::Value& x) { return hlo::one(x.builder(), x.type()); }
// The s32 position of each element of x along the last dimension, of matrices also along the rows.
inline hlo::Value last_positions(const hlo::Value& x) {
  return hlo::iota(x.builder(), {hlo::DType::S32, x.dims()}, x.rank() - 1);
}
inline hlo::Value column_positions(const hlo::Value& x) { return last_positions(x); }
inline hlo::Value row_positions(const hlo::Value& x) {
  return hlo::iota(x.builder(), {hlo::DType::S32, x.dims()}, x.rank() - 2);
}
inline hlo::Value on_diagonal(const hlo::Value& x) {
  return hlo::equal(row_positions(x), column_positions(x));
}
// Copies x and sets elements outside of the lower or upper triangle to zero.
hlo::Value on_triangle(const hlo::Value& x, bool lower);
inline hlo::Value identity_like(const hlo::Value& x) {
  return hlo::convert(on_diagonal(x), x.dtype());
}

inline hlo::Value transposed(const hlo::Value& x) {
  return move_dim(x, x.rank() - 2, x.rank() - 1);
}
inline hlo::Value adjoint(const hlo::Value& x) { return conjugate(transposed(x)); }

hlo::Value product(const hlo::Value& x, const hlo::Value& y);

// Broadcasts a value per matrix, row or column to the dims of x. `left_out` names the dimensions of
// x that `value` lacks, counted from the end.
hlo::Value over(const hlo::Value& value, const hlo::Value& x,
                std::initializer_list<int64_t> left_out);
// Compares positions with `i` (0-dim).
inline hlo::Value is_at(const hlo::Value& positions, const hlo::Value& i) {
  return hlo::equal(positions, hlo::broadcast_to(i, positions.dims()));
}
// `cut` takes `count` elements along a dimension, from `first` (0-dim) on; `write` replaces them.
hlo::Value cut(const hlo::Value& x, int64_t dim, const hlo::Value& first, int64_t count);
hlo::Value write(const hlo::Value& x, const hlo::Value& part, int64_t dim, const hlo::Value& first);
// `pick` takes element `i` (0-dim) along a dimension and removes the dimension; `put` replaces the
// element.
hlo::Value pick(const hlo::Value& x, int64_t dim, const hlo::Value& i);
hlo::Value put(const hlo::Value& x, int64_t dim, const hlo::Value& i, const hlo::Value& element);
// Takes the one element along a dimension where `chosen` is true. Others may be infinite or NaN.
hlo::Value only(const hlo::Value& chosen, const hlo::Value& x, int64_t dim);
inline hlo::Value diagonal(const hlo::Value& x) { return only(on_diagonal(x), x, x.rank() - 2); }

// Multiplies each row of x by a vector and sums it.
hlo::Value row_products(const hlo::Value& x, const hlo::Value& vector);

// Reflectors are LAPACK's: H = I - tau v v^H, where v is 1 at one row and 0 before it. The
// reflector of a column maps it, from row `here` on, to a single number at that row.
struct Reflector {
  hlo::Value v, tau;
  hlo::Value stored;  // the column with that number at row `here` and v below it, as LAPACK's
};
Reflector reflector_of(const hlo::Value& column, const hlo::Value& here);
// Several reflectors: column k of `vectors` holds vector k below its diagonal element, which counts
// as 1. Elements above the diagonal are not read.
struct Reflectors {
  hlo::Value vectors, tau;
};
// Returns Q x, or Q^H x if `of_adjoint`, where Q is the product of the reflectors.
hlo::Value apply(const Reflectors& q, const hlo::Value& x, bool of_adjoint);

// Returns `count` orthonormal columns. The first of them span the columns of x; the others complete
// the basis where x has dependent or fewer columns.
hlo::Value orthonormal_basis(const hlo::Value& x, int64_t count);
// Returns R of x = Q R, without its rows of zeros.
hlo::Value triangle_of(const hlo::Value& x);

// The body of a loop: (round, state) -> state. The round, a 0-dim s32, counts from 0.
using Round = std::function<hlo::Values(const hlo::Value&, std::span<const hlo::Value>)>;
hlo::Values repeat(int64_t count, hlo::Values state, const Round& round);

// Splits the columns of a matrix into panels: loops over columns then touch one panel, and the rest
// of the work is products of matrices. The last panel may reach past the last column.
struct Panels {
  int64_t width, count;
  explicit Panels(int64_t columns)
      : width(std::clamp<int64_t>(columns, 1, 32)), count((columns + width - 1) / width) {}
  int64_t whole() const { return width * count; }
};
// Pads x with zeros to this many rows and columns.
inline hlo::Value grown(const hlo::Value& x, int64_t rows, int64_t columns) {
  return pad_dim(pad_dim(x, x.rank() - 2, 0, rows - rows_of(x)), x.rank() - 1, 0,
                 columns - columns_of(x));
}

}  // namespace torch_xla::ops
