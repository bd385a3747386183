// Collectives for a body of on_each_device() (hlo/partition.h): devices of a group reduce their
// parts by one of StableHLO's operations ("add"), or join them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "hlo/builder.h"

namespace torch_xla::hlo {

// Groups have each device once, and equally many.
using Groups = std::vector<std::vector<int64_t>>;
// All of it on each of them.
Value all_reduce(const Value& x, std::string_view reduction, const Groups& groups);
// A part of it, along a dimension, on each.
Value reduce_scatter(const Value& x, std::string_view reduction, int64_t dim, const Groups& groups);
// All of their parts, one after the other along a dimension, on each of them.
Value all_gather(const Value& x, int64_t dim, const Groups& groups);

}  // namespace torch_xla::hlo
