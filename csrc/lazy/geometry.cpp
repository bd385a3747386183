#include "lazy/geometry.h"

#include <memory>
#include <mutex>
#include <unordered_map>

#include <c10/core/TensorImpl.h>

#include "util/error.h"
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

const Geometry* Geometry::row_major() const {
  const Geometry* known = row_major_.load(std::memory_order_relaxed);
  if (known == nullptr) {
    known = intern_contiguous(dtype, sizes);
    row_major_.store(known, std::memory_order_relaxed);
  }
  return known;
}

hlo::DType to_hlo(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return hlo::DType::Pred;
    case at::kByte:
      return hlo::DType::U8;
    case at::kChar:
      return hlo::DType::S8;
    case at::kShort:
      return hlo::DType::S16;
    case at::kInt:
      return hlo::DType::S32;
    case at::kLong:
      return hlo::DType::S64;
    case at::kUInt16:
      return hlo::DType::U16;
    case at::kUInt32:
      return hlo::DType::U32;
    case at::kUInt64:
      return hlo::DType::U64;
    case at::kBFloat16:
      return hlo::DType::BF16;
    case at::kHalf:
      return hlo::DType::F16;
    case at::kFloat:
      return hlo::DType::F32;
    case at::kDouble:
      return hlo::DType::F64;
    case at::kComplexFloat:
      return hlo::DType::C64;
    case at::kComplexDouble:
      return hlo::DType::C128;
    case at::kFloat8_e4m3fn:
      return hlo::DType::F8E4M3FN;
    case at::kFloat8_e4m3fnuz:
      return hlo::DType::F8E4M3FNUZ;
    case at::kFloat8_e5m2:
      return hlo::DType::F8E5M2;
    case at::kFloat8_e5m2fnuz:
      return hlo::DType::F8E5M2FNUZ;
    default:
      // No TypeError: of an operator (`half + 1j`) Python would take it for "try the other
      // operand".
      util::fail(util::ErrorKind::Runtime, "xla: expected a dtype that XLA has, got ",
                 c10::toString(dtype), ". Convert the tensor to another dtype.");
  }
}

const Geometry* intern(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  static auto& mutex = *new util::ForkMutex;
  static auto& table =
      *new std::unordered_map<util::Hash128, std::unique_ptr<const Geometry>, util::Hash128Hasher>;
  const util::Hash128 hash = hash_of(dtype, sizes, strides);
  const std::lock_guard lock(mutex);
  if (const auto found = table.find(hash); found != table.end()) return found->second.get();

  to_hlo(dtype);  // there are no tensors of others
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
  return table.emplace(hash, std::move(g)).first->second.get();
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
