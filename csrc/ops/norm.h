// What the files of the normalization family share: their mean, and the registrations of the one
// that norm.cpp does not hold.
#pragma once

#include <algorithm>
#include <span>

#include "ops/common.h"

namespace torch_xla::ops {

// The mean over all dimensions but those kept, which `sum` adds up. It sums distances from one of
// the elements: of nearly equal ones a sum of the elements themselves would round by more than they
// differ, and 1/sqrt(eps) magnifies that.
template <typename Sum>
hlo::Value mean_of(const hlo::Value& x, std::span<const int64_t> kept, const Sum& sum) {
  hlo::Dims sizes;
  for (int64_t dim : kept) sizes.push_back(x.dim(dim));
  const double rows = static_cast<double>(hlo::Type{x.dtype(), sizes}.elements());
  const double n = rows == 0 ? 0.0 : static_cast<double>(x.type().elements()) / rows;
  if (n == 0) return sum(x) / n;
  hlo::Value first = x;
  for (int64_t dim = 0; dim < x.rank(); ++dim) {
    if (std::ranges::find(kept, dim) == kept.end()) first = hlo::slice_dim(first, dim, 0, 1);
  }
  first = hlo::reshape(first, sizes);
  // Beside an infinite one there is no distance.
  first = hlo::select(hlo::is_finite(first), first, hlo::zero(x.builder(), first.type()));
  return first + sum(x - hlo::broadcast_in_dim(first, x.dims(), kept)) / n;
}

// Traits::layout of batch normalizations.
at::MemoryFormat batch_norm_layout(const Arguments& a);

}  // namespace torch_xla::ops
