// The files that the family of reductions is split into, and what they share.
#pragma once

#include "ops/common.h"

namespace torch_xla::ops {

// A reduced value as result `i`: its dtype, and dimensions of size 1 where keepdim asks for them.
inline hlo::Value reduced(const Lowering& l, const hlo::Value& x, size_t i = 0) {
  return hlo::reshape(cast(x, l.out(i).dtype), l.out(i).dims);
}

}  // namespace torch_xla::ops
