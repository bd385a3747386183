#include "lazy/geometry.h"

#include <memory>
#include <mutex>
#include <unordered_map>

#include <c10/core/TensorImpl.h>

#include "util/fork_mutex.h"

namespace torch_xla::lazy {
namespace {

util::Hash128 hash_of(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  util::Hasher h;
  h.add(static_cast<uint64_t>(dtype)).add(sizes.size());
  for (const int64_t s : sizes) h.add(static_cast<uint64_t>(s));
  for (const int64_t s : strides) h.add(static_cast<uint64_t>(s));
  return h.finish();
}

// Lets PyTorch derive the layout.
class LayoutProbe final : public c10::TensorImpl {
 public:
  explicit LayoutProbe(const Geometry& g)
      : c10::TensorImpl(c10::DispatchKeySet(c10::DispatchKey::XLA),
                        c10::scalarTypeToTypeMeta(g.dtype), at::Device(at::kXLA, 0)) {
    set_sizes_and_strides(g.sizes, g.strides);
  }
  Geometry::Layout layout() const {
    return {sizes_and_strides_,           is_contiguous_,       is_channels_last_,
            is_channels_last_contiguous_, is_channels_last_3d_, is_channels_last_3d_contiguous_,
            is_non_overlapping_and_dense_};
  }
};

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
  static auto& mutex = *new util::ForkMutex;
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
    g->layout = c10::make_intrusive<LayoutProbe>(*g)->layout();
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
