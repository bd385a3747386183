// The mean and the memory format that the files of the normalization family share.
#pragma once

#include <algorithm>
#include <span>

#include "ops/common.h"

namespace torch_xla::ops {

// Returns the first slice of `x` along dimension 0, which stays, of size 1. In a partitioned
// program it is a sum of which one device has a term: a slice would need the whole batch.
hlo::Value first_of_batch(const hlo::Value& x);

// Computes the mean over all dimensions but `kept`; `sum` adds up over these dimensions. It sums
// distances from one of the elements: a sum of nearly equal elements themselves would round by more
// than they differ, and 1/sqrt(eps) magnifies that.
template <typename Sum>
hlo::Value mean_of(const hlo::Value& x, std::span<const int64_t> kept, const Sum& sum) {
  hlo::Dims sizes;
  for (int64_t dim : kept) sizes.push_back(x.dim(dim));
  const double rows = static_cast<double>(hlo::Type{x.dtype(), sizes}.elements());
  const double n = rows == 0 ? 0.0 : static_cast<double>(x.type().elements()) / rows;
  if (n == 0) return sum(x) / n;
  hlo::Value first = x;
  for (int64_t dim = x.rank(); dim-- > 0;) {
    if (std::ranges::find(kept, dim) != kept.end()) continue;
    first = dim == 0 ? first_of_batch(first) : hlo::slice_dim(first, dim, 0, 1);
  }
  first = hlo::reshape(first, sizes);
  // From an infinite element there is no distance.
  first = hlo::select(hlo::is_finite(first), first, hlo::zero(x.builder(), first.type()));
  return first + sum(x - hlo::broadcast_in_dim(first, x.dims(), kept)) / n;
}

// Gives Traits::layout of batch normalizations.
at::MemoryFormat batch_norm_layout(const Arguments& a);

}  // namespace torch_xla::ops
