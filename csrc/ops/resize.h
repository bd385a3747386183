// The registrations of the resize family that live in files of their own.
#pragma once

#include "ops/lowering.h"

namespace torch_xla::ops {}  // namespace torch_xla::ops
