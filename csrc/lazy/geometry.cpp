#include "lazy/geometry.h"

#include <memory>
#include <mutex>
#include <unordered_map>

namespace torch_xla::lazy {
namespace {

util::Hash128 hash_of(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  util::Hasher h;
  h.add(static_cast<uint64_t>(dtype)).add(sizes.size());
  for (const int64_t s : sizes) h.add(static_cast<uint64_t>(s));
  for (const int64_t s : strides) h.add(static_cast<uint64_t>(s));
  return h.finish();
}

}  // namespace

int64_t Geometry::storage_elements() const {
  int64_t last = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] == 0) return 0;
    last += (sizes[i] - 1) * strides[i];
  }
  return last + 1;
}

const Geometry* intern(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  static std::mutex mutex;
  static auto& table =
      *new std::unordered_map<util::Hash128, std::unique_ptr<const Geometry>, util::Hash128Hasher>;
  const util::Hash128 hash = hash_of(dtype, sizes, strides);
  const std::lock_guard lock(mutex);
  std::unique_ptr<const Geometry>& slot = table[hash];
  if (slot == nullptr) {
    auto g = std::make_unique<Geometry>();
    g->dtype = dtype;
    g->sizes = sizes.vec();
    g->strides = strides.vec();
    g->hash = hash;
    g->numel = 1;
    g->contiguous = true;
    for (size_t i = sizes.size(); i-- > 0;) {
      if (sizes[i] != 1 && strides[i] != g->numel) g->contiguous = false;
      g->numel *= sizes[i];
    }
    if (g->numel == 0) g->contiguous = true;
    slot = std::move(g);
  }
  return slot.get();
}

const Geometry* intern_contiguous(at::ScalarType dtype, c10::IntArrayRef sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t i = sizes.size(); i-- > 0;) {
    strides[i] = step;
    step *= sizes[i] > 1 ? sizes[i] : 1;
  }
  return intern(dtype, sizes, strides);
}

}  // namespace torch_xla::lazy
