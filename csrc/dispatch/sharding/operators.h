// The operators of values that are split: sharding constraints, and those of manual code.
#pragma once

#include <ATen/core/Tensor.h>

#include "spmd/sharding.h"

namespace torch_xla::dispatch {

// Return the part that each device has of a value that is split evenly, as a manual value; and the
// value of such parts (ops/manual_sharding.h).
at::Tensor full_to_shard(const at::Tensor& self, const spmd::Sharding& sharding);
at::Tensor shard_to_full(const at::Tensor& self, const spmd::Sharding& sharding);

}  // namespace torch_xla::dispatch
