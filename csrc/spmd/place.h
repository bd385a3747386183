// Where the parts of a value lie in it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spmd/sharding.h"

namespace torch_xla::spmd {

struct Span {
  int64_t start, end;
};

// Returns where a device's part of a value of these sizes begins and ends along each dimension,
// without padding.
std::vector<Span> place_of(const Sharding& sharding, int64_t device,
                           std::span<const int64_t> sizes);

// Returns for each part of a value that is among `devices`, which are in order, the one of them
// that holds its first copy; in order.
std::vector<int64_t> holders_of(const Sharding& sharding, std::span<const int64_t> devices);

}  // namespace torch_xla::spmd
