// Parts that linalg_svd.cpp and linalg_eigh.cpp share.
#pragma once

#include <utility>

#include "ops/linalg.h"

namespace torch_xla::ops {

inline double epsilon_of(hlo::DType dtype) {
  return dtype == hlo::DType::F64 || dtype == hlo::DType::C128 ? 0x1p-52 : 0x1p-23;
}
// Returns the 1-norm of each matrix: the largest sum of magnitudes in a column.
hlo::Value largest_column_sum(const hlo::Value& x);
// Sorts values; the second result holds the position each had.
std::pair<hlo::Value, hlo::Value> sorted(const hlo::Value& values, bool descending);

// Eigenvalues, rising, and eigenvectors of Hermitian matrices.
struct Eigen {
  hlo::Value values, vectors;
};
// Uses Jacobi's rotations, which suit small matrices.
Eigen eigen_by_rotations(const hlo::Value& x, const Target& target);
// Chooses the method by size. Without `vectors` the result's vectors are undefined.
Eigen eigen_of(const hlo::Value& x, bool vectors, const Target& target);

}  // namespace torch_xla::ops
