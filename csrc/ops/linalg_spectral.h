// What singular values and eigenvalues are computed with, by linalg_svd.cpp and linalg_eigh.cpp.
#pragma once

#include <utility>

#include "ops/linalg.h"

namespace torch_xla::ops {

inline double epsilon_of(hlo::DType dtype) {
  return dtype == hlo::DType::F64 || dtype == hlo::DType::C128 ? 0x1p-52 : 0x1p-23;
}
// A bound of the size of what a matrix does to a vector, for each matrix.
hlo::Value largest_column_sum(const hlo::Value& x);
// Values in rising or falling order, and where they come from.
std::pair<hlo::Value, hlo::Value> sorted(const hlo::Value& values, bool descending);

// Eigenvalues, rising, and eigenvectors of Hermitian matrices.
struct Eigen {
  hlo::Value values, vectors;
};
// By Jacobi's rotations: for small ones.
Eigen eigen_by_rotations(const hlo::Value& x, const Target& target);
// By what suits the size. Vectors that are not asked for may be anything.
Eigen eigen_of(const hlo::Value& x, bool vectors, const Target& target);

}  // namespace torch_xla::ops
