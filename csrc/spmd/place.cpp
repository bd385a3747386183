#include "spmd/place.h"

#include <algorithm>
#include <set>

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

std::vector<int64_t> holders_of(const Sharding& sharding, std::span<const int64_t> devices) {
  std::set<std::vector<int64_t>> seen;
  std::vector<int64_t> holders;
  for (const int64_t device : sharding.mesh->devices) {  // which is the order of copies
    if (!std::ranges::binary_search(devices, device)) continue;
    if (seen.insert(sharding.part_of(device)).second) holders.push_back(device);
  }
  std::ranges::sort(holders);
  return holders;
}

}  // namespace torch_xla::spmd
