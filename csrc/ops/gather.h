// Reads and writes at computed positions: gather and scatter in the few forms that rules need.
// Positions must be in range; one that is not reads the nearest element and writes nothing.
#pragma once

#include <cstdint>

#include "hlo/ops.h"
#include "ops/target.h"

namespace torch_xla::ops {

// Makes negative positions count from the end of a dimension of `size`.
hlo::Value wrap_index(const hlo::Value& index, int64_t size);

// Takes whole slices of dimension `dim`; the dimensions of `index` (any rank) replace it.
hlo::Value take_rows(const hlo::Value& x, int64_t dim, const hlo::Value& index);
// The transpose: `updates` has the dimensions of `take_rows(x, dim, index)`.
hlo::Value scatter_rows(const hlo::Value& x, int64_t dim, const hlo::Value& index,
                        const hlo::Value& updates, const hlo::Combine& combine,
                        bool unique = false);

// Takes one element for each element of `index`, which has x's rank and is not larger than x in any
// other dimension than `dim`: result[i][j] = x[i][index[i][j]] for dim = 1.
hlo::Value take_along(const hlo::Value& x, int64_t dim, const hlo::Value& index,
                      const Target& target);
// The transpose: `updates` has the dimensions of `index`.
hlo::Value scatter_along(const hlo::Value& x, int64_t dim, const hlo::Value& index,
                         const hlo::Value& updates, const hlo::Combine& combine,
                         const Target& target, bool unique = false);

// Combines for scatter: the last written value wins; sums are `or` on predicates.
hlo::Value replace(const hlo::Value& current, const hlo::Value& update);
hlo::Value accumulate(const hlo::Value& current, const hlo::Value& update);

// Compute the inclusive running sum and maximum along `dim`.
hlo::Value running_sum(const hlo::Value& x, int64_t dim);
hlo::Value running_max(const hlo::Value& x, int64_t dim);

}  // namespace torch_xla::ops
