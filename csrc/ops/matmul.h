// Multiplies matrices by PyTorch's kernels on the CPU target, where these are faster than XLA's.
#pragma once

#include <optional>

#include "ops/lowering.h"

namespace torch_xla::ops {

// A matrix as it lies in memory, its rows perhaps in several dimensions; the product may take it
// transposed.
struct Factor {
  hlo::Value matrix;
  bool transposed = false;

  int64_t rows() const { return transposed ? width() : height(); }
  int64_t columns() const { return transposed ? height() : width(); }

 private:
  int64_t width() const { return matrix.dim(matrix.rank() - 1); }
  int64_t height() const { return width() == 0 ? 0 : matrix.type().elements() / width(); }
};

// Makes a factor of x. Where the program makes x by transposing another matrix, takes that one, so
// that nothing is copied.
Factor factor_of(const hlo::Value& x);

// Computes left @ right in the type of both, with `row` added to each row: a matrix. Returns
// nullopt where the rule is to take XLA's code.
std::optional<hlo::Value> host_product(const Factor& left, const Factor& right,
                                       const std::optional<hlo::Value>& row = std::nullopt);

}  // namespace torch_xla::ops
