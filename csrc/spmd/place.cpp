#include "spmd/place.h"

#include <algorithm>

namespace torch_xla::spmd {

std::vector<Span> place_of(const Sharding& sharding, int64_t device,
                           std::span<const int64_t> sizes) {
  const std::vector<int64_t> index = sharding.part_of(device), part = sharding.part_sizes(sizes);
  std::vector<Span> place;
  for (size_t i = 0; i < index.size(); ++i) {
    const int64_t start = std::min(index[i] * part[i], sizes[i]);
    place.push_back({start, std::min(start + part[i], sizes[i])});
  }
  return place;
}

}  // namespace torch_xla::spmd
