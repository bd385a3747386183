// Interface, what a program takes and gives: arrays, numbers, and how they are split.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include <c10/core/ScalarType.h>

#include "lazy/geometry.h"
#include "spmd/sharding.h"

namespace torch_xla::executor {

struct Parameter {
  const lazy::Geometry* geometry;
  at::ScalarType dtype;                      // in which the device holds it
  int32_t reused_by = -1;                    // the result that takes over its buffer, or -1
  const spmd::Sharding* sharding = nullptr;  // null: each device has the whole
};

// The splits of calls' results, by the call's ordinal and the result's index.
using ValueSplits = std::map<std::pair<uint32_t, uint32_t>, const spmd::Sharding*>;

// A program takes arrays, then its numbers, packed.
struct Interface {
  std::vector<Parameter> parameters;
  size_t num_floats = 0, num_ints = 0;
  // Where a program is partitioned: what its shardings refer to, and how results are to be split.
  // Those without a sharding are split as the compiler chooses.
  const spmd::Mesh* mesh = nullptr;
  std::vector<const spmd::Sharding*> results = {};
  std::shared_ptr<const ValueSplits> values = {};  // null: the compiler chooses for all
};

}  // namespace torch_xla::executor
