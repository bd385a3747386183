// The registrations of the normalization family that live in files of their own.
#pragma once

#include "ops/lowering.h"

namespace torch_xla::ops {

void register_norm_rows(Registry& r);

}  // namespace torch_xla::ops
