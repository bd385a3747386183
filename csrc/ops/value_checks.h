// Checks values for Traits::suspects_values of several families: indices out of range, numbers out
// of bounds. Programs drop such indices and read some element in their place; PyTorch's CPU kernels
// refuse them.
#pragma once

#include <cstdint>
#include <limits>

#include <c10/core/WrapDimMinimal.h>

#include "ops/traits.h"

namespace torch_xla::ops {

// The range first, .., end - 1; `ignored` is valid too.
struct IndexRange {
  int64_t first, end;
  int64_t ignored = std::numeric_limits<int64_t>::min();
};

// Returns whether the indices are known and one is outside of the range.
bool leaves(const KnownArguments& a, const c10::IValue& indices, IndexRange range);

// For operators to which 0-dim tensors of the CPU are no numbers. Throws where one is among tensors
// of a device.
void on_one_device(const Arguments& a);

// Returns whether the elements are known and one is below `least`, above `most`, or nan.
bool exceeds(const KnownArguments& a, const c10::IValue& v, double least, double most);

inline int64_t size_of_dim(const at::Tensor& t, int64_t dim) {
  return t.dim() == 0 ? 1 : t.size(dim);
}

// Returns whether the index of a call (self, dim, index, ..) is known to leave the dimension.
template <bool Negative = false>
bool along_dim(const KnownArguments& a) {
  const at::Tensor& self = a.tensor(0);
  const int64_t end = size_of_dim(self, c10::maybe_wrap_dim(a[1].toInt(), self.dim()));
  return leaves(a, a[2], {Negative ? -end : 0, end});
}

}  // namespace torch_xla::ops
