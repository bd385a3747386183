// The registrations of the resize family that live in files of their own.
#pragma once

#include "ops/lowering.h"

namespace torch_xla::ops {

void register_resize_grid(Registry& r);

}  // namespace torch_xla::ops
