// Facts about tensors that operators make from nothing.
#pragma once

#include "lazy/operator.h"

namespace torch_xla::ops {

// Returns whether the operator gives zeros, whatever it is called with.
bool makes_zeros(const lazy::Operator& op);

}  // namespace torch_xla::ops
