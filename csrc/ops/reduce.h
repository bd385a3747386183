// Shapes the results of the files of the reduction family.
#pragma once

#include "ops/common.h"

namespace torch_xla::ops {

// Makes result `i` of a reduced value: gives it that dtype, and dimensions of size 1 where keepdim
// asks for them.
inline hlo::Value reduced(const Lowering& l, const hlo::Value& x, size_t i = 0) {
  return hlo::reshape(cast(x, l.out(i).dtype), l.out(i).dims);
}

}  // namespace torch_xla::ops
