// Products of matrices by PyTorch's kernels, where these are faster than XLA's, on the CPU target.
#pragma once

#include <optional>

#include "ops/lowering.h"

namespace torch_xla::ops {

// A matrix as it lies in memory, its rows perhaps in several dimensions, and whether the product
// takes it transposed.
struct Factor {
  hlo::Value matrix;
  bool transposed = false;

  int64_t rows() const { return transposed ? width() : height(); }
  int64_t columns() const { return transposed ? height() : width(); }

 private:
  int64_t width() const { return matrix.dim(matrix.rank() - 1); }
  int64_t height() const { return width() == 0 ? 0 : matrix.type().elements() / width(); }
};

// Of a matrix that the program makes by transposing another: that one, which is not copied then.
Factor factor_of(const hlo::Value& x);

// left @ right in the type of both, with `row` added to each row: a matrix. nullopt where XLA's
// code is to be taken.
std::optional<hlo::Value> host_product(const Factor& left, const Factor& right,
                                       const std::optional<hlo::Value>& row = std::nullopt);

}  // namespace torch_xla::ops
