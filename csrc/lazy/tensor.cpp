#include "lazy/tensor.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <typeinfo>

#include "lazy/recording.h"
#include "util/diagnostics.h"
#include "util/error.h"

namespace torch_xla::lazy {

Value (*zeros_value)(const Geometry& geometry, int device) = nullptr;
Value (*copy_value)(const Value& value) = nullptr;
Value (*read_over)(Storage& storage, const Geometry& geometry) = nullptr;

// --- storage -------------------------------------------------------------------------------

namespace {

size_t storage_bytes(const Geometry& g) {
  return static_cast<size_t>(g.contiguous ? g.numel : g.storage_elements()) *
         c10::elementSize(g.dtype);
}

// Libraries compare addresses to see which tensors share memory. A storage has none, so it gets a
// range of addresses for itself that no process can have: whoever reads there fails at once. Ranges
// are given out in turn, in 9 EB. No memory is as large as the longest range: more is only asked
// for by tensors that are never computed. The first ranges, of what was made first and may live
// long (parameters), are given out once.
at::DataPtr address_range(size_t bytes, int device) {
  constexpr uint64_t kFirst = uint64_t{1} << 48, kAgain = uint64_t{1} << 60,
                     kLast = uint64_t{1} << 63, kAlignment = 64, kLongest = uint64_t{1} << 44;
  static std::atomic<uint64_t> next{kFirst};
  const uint64_t size =
      (std::clamp<uint64_t>(bytes, 1, kLongest) + kAlignment - 1) / kAlignment * kAlignment;
  uint64_t address = next.fetch_add(size, std::memory_order_relaxed);
  if (address >= kLast - size) next.store((address = kAgain) + size);
  return {reinterpret_cast<void*>(address),
          at::Device(at::kXLA, static_cast<c10::DeviceIndex>(device))};
}

}  // namespace

Storage::Storage(const Geometry* geometry, int device, Value value)
    : c10::StorageImpl(use_byte_size_t(), static_cast<int64_t>(storage_bytes(*geometry)),
                       address_range(storage_bytes(*geometry), device), nullptr, false),
      geometry_(geometry),
      device_(Device::of(device)),
      device_index_(device),
      value_(std::move(value)) {
  device_.live_storages.fetch_add(1, std::memory_order_relaxed);
  if (value_ && !value_.node->is_data()) link();
}

Storage::~Storage() {
  device_.live_storages.fetch_sub(1, std::memory_order_relaxed);
  const GraphLock lock;  // a sync on another thread may be giving it its data
  unlink();
  replay_views();
  value_ = {};
}

const Value& Storage::value() {
  if (Recording* recording = Recording::current()) recording->before_read(*this);
  if (!value_) value_ = zeros_value(*geometry_, device_index_);
  return value_;
}

void Storage::check_writable(bool may_be_lent) {
  Recording* recording = Recording::current();
  if (recording == nullptr || recording->has_made(id_)) return;
  if (may_be_lent && recording->lends(*this)) return;
  util::fail(util::ErrorKind::Runtime,
             "xla: expected a function that is being recorded to write its arguments or tensors "
             "that it makes, got a write to another tensor. Pass that tensor as an argument.");
}

void Storage::set_value(Value value) {
  check_writable(true);
  if (value_) {
    constexpr size_t kMost = 256;  // of a storage that is written and never read
    if (value_.node->is_data()) past_.clear();
    if (past_.size() == kMost)
      past_.erase(past_.begin() + 1, past_.begin() + kMost / 2);  // not the first
    past_.push_back({value_.node->id(), value_.index});
  }
  hold(std::move(value));
}

void Storage::hold(Value value) {
  value_ = std::move(value);
  replay_views();
  if (value_ && !value_.node->is_data()) {
    link();
  } else {
    unlink();
    past_.clear();
  }
}

void Storage::take_back(size_t i, Value value) {
  past_.resize(i);
  hold(std::move(value));
}

void Storage::materialize(Value data, bool replay) {
  past_.clear();
  value_ = std::move(data);
  if (replay) replay_views();
  unlink();
}

void Storage::promise(Value data) {
  past_.clear();
  value_ = std::move(data);
  replay_views();
  if (!linked_) link();
}

void Storage::add_kept_by_views(std::vector<const Node*>& nodes) const {
  for (const View* view = readers_; view != nullptr; view = view->next_) {
    nodes.push_back(view->cached_.node.get());
  }
}

void Storage::replay_views() {
  while (readers_ != nullptr) readers_->forget();
}

void Storage::reset(const Geometry* geometry, Value value) {
  check_writable(false);
  geometry_ = geometry;
  const size_t bytes = storage_bytes(*geometry);
  if (bytes > nbytes()) set_data_ptr_noswap(address_range(bytes, device_index_));
  set_nbytes(bytes);
  past_.clear();
  sharding_ = nullptr;  // that of other dimensions
  hold(std::move(value));
}

void Storage::link() {
  if (Recording::current() != nullptr) return;
  unlink();
  previous_ = device_.last_pending;
  next_ = nullptr;
  (previous_ != nullptr ? previous_->next_ : device_.first_pending) = this;
  device_.last_pending = this;
  linked_ = true;
}

void Storage::unlink() {
  if (!linked_) return;
  (previous_ != nullptr ? previous_->next_ : device_.first_pending) = next_;
  (next_ != nullptr ? next_->previous_ : device_.last_pending) = previous_;
  previous_ = next_ = nullptr;
  linked_ = false;
}

void Storage::for_each_pending(int device, const std::function<void(Storage&)>& visit) {
  Storage* storage = Device::of(device).first_pending;
  while (storage != nullptr) {
    Storage* next = storage->next_;
    visit(*storage);
    storage = next;
  }
}

// --- view ----------------------------------------------------------------------------------

View::View(c10::intrusive_ptr<View> parent, c10::intrusive_ptr<const Signature> step,
           uint32_t index, int64_t offset)
    : parent_(std::move(parent)), step_(std::move(step)), index_(index), offset_(offset) {
  if constexpr (util::kDiagnostics) {
    const GraphLock lock;
    take_source(source_);
  }
}

View::~View() {
  if (storage_.load(std::memory_order_acquire) != nullptr) {
    const GraphLock lock;
    forget();
  }
  // Without recursion: a long chain of views must not exhaust the stack.
  c10::intrusive_ptr<View> last = std::move(parent_);
  while (last.defined() && last.use_count() == 1) last = std::move(last->parent_);
}

void View::remember(Storage& storage, Value value) {
  forget();
  cached_ = std::move(value);
  next_ = storage.readers_;
  if (next_ != nullptr) next_->previous_ = this;
  storage.readers_ = this;
  storage_.store(&storage, std::memory_order_relaxed);
}

void View::forget() {
  Storage* storage = storage_.load(std::memory_order_relaxed);
  if (storage == nullptr) return;
  (previous_ != nullptr ? previous_->next_ : storage->readers_) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  previous_ = next_ = nullptr;
  cached_ = {};
  storage_.store(nullptr, std::memory_order_release);  // last: now it may die in another thread
}

Value View::read(Storage& storage) {
  // Lent state drops what views keep of its value.
  if (Recording* recording = Recording::current()) recording->before_read(storage);
  // From here to the first view that is up to date; chains may be long.
  c10::SmallVector<View*, 8> stale;
  View* view = this;
  while (view != nullptr && view->storage_.load(std::memory_order_relaxed) != &storage) {
    stale.push_back(view);
    view = view->parent_.get();
  }
  Value value = view != nullptr ? view->cached_
                                : value_over(storage, *stale.back()->step_->operands[0].geometry);
  while (!stale.empty()) {
    view = stale.pop_back_val();
    Operands operands;
    operands.push_back(std::move(value));
    value = {
        make_node(view->step_, std::move(operands), {}, storage.device_index(), &view->source_),
        view->index_};
    view->remember(storage, value);
  }
  return value;
}

// --- tensor --------------------------------------------------------------------------------

TensorCounts tensor_counts;

TensorImpl::~TensorImpl() { tensor_counts.gone.fetch_add(1, std::memory_order_relaxed); }

TensorImpl::TensorImpl(c10::intrusive_ptr<c10::StorageImpl> storage, const Geometry* geometry,
                       int64_t offset, c10::intrusive_ptr<View> view)
    : c10::TensorImpl(c10::Storage(std::move(storage)),
                      c10::DispatchKeySet{c10::DispatchKey::XLA, c10::DispatchKey::AutogradXLA},
                      c10::scalarTypeToTypeMeta(geometry->dtype)),
      view_(std::move(view)) {
  tensor_counts.made.fetch_add(1, std::memory_order_relaxed);
  set_geometry(geometry, offset);
}

TensorImpl::TensorImpl(const TensorImpl& source, const Geometry* geometry, int64_t offset,
                       c10::intrusive_ptr<View> view)
    : c10::TensorImpl(c10::TensorImpl::VIEW, c10::Storage(source.storage()), source.key_set(),
                      c10::scalarTypeToTypeMeta(geometry->dtype)),
      view_(std::move(view)) {
  tensor_counts.made.fetch_add(1, std::memory_order_relaxed);
  set_geometry(geometry, offset);
}

void TensorImpl::set_geometry(const Geometry* geometry, int64_t offset) {
  geometry_ = geometry;
  const Geometry::Layout& layout = geometry->layout;
  sizes_and_strides_ = layout.sizes_and_strides;
  storage_offset_ = offset;
  numel_ = geometry->numel;
  is_contiguous_ = layout.contiguous;
  is_channels_last_ = layout.channels_last;
  is_channels_last_contiguous_ = layout.channels_last_contiguous;
  is_channels_last_3d_ = layout.channels_last_3d;
  is_channels_last_3d_contiguous_ = layout.channels_last_3d_contiguous;
  is_non_overlapping_and_dense_ = layout.non_overlapping_and_dense;
}

Value TensorImpl::read() const {
  if (Recording* recording = Recording::current()) recording->before_read(*this);
  Storage& storage = lazy_storage();
  return view_.defined() ? view_->read(storage) : value_over(storage, *geometry_);
}

void TensorImpl::computed(const Value& value, const Value& data) const {
  if (view_.defined()) {
    view_->computed(value, data);
  } else if (Storage& storage = lazy_storage(); storage.has_value() && storage.value() == value) {
    storage.materialize(data);
  }
}

void TensorImpl::assign(c10::intrusive_ptr<c10::StorageImpl> storage, const Geometry* geometry,
                        int64_t offset, c10::intrusive_ptr<View> view) {
  storage_ = c10::Storage(std::move(storage));
  view_ = std::move(view);
  data_type_ = c10::scalarTypeToTypeMeta(geometry->dtype);
  set_geometry(geometry, offset);
}

c10::intrusive_ptr<c10::TensorImpl> TensorImpl::shallow_copy_and_detach(
    const c10::VariableVersion& version_counter, bool allow_metadata_change) const {
  auto impl = c10::make_intrusive<TensorImpl>(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_.unsafeGetStorageImpl()),
      geometry_, storage_offset_, view_);
  copy_tensor_metadata(this, impl.get(), version_counter, allow_metadata_change);
  return impl;
}

c10::intrusive_ptr<c10::TensorImpl> TensorImpl::shallow_copy_and_detach(
    c10::VariableVersion&& version_counter, bool allow_metadata_change) const {
  auto impl = c10::make_intrusive<TensorImpl>(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage_.unsafeGetStorageImpl()),
      geometry_, storage_offset_, view_);
  copy_tensor_metadata(this, impl.get(), std::move(version_counter), allow_metadata_change);
  return impl;
}

void TensorImpl::shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) {
  if (typeid(*impl) != typeid(TensorImpl)) {
    util::fail(util::ErrorKind::Runtime, "set_data: expected an xla tensor, got one on ",
               impl->device(), ". Move it with .to('xla') first.");
  }
  copy_tensor_metadata(impl.get(), this, version_counter(), allow_tensor_metadata_change());
  const auto* source = static_cast<const TensorImpl*>(impl.get());
  geometry_ = source->geometry_;
  view_ = source->view_;
}

TensorImpl* as_lazy(const at::Tensor& tensor) {
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  return typeid(*impl) == typeid(TensorImpl) ? static_cast<TensorImpl*>(impl) : nullptr;
}

TensorImpl& expect_lazy(const at::Tensor& tensor, const char* who) {
  TensorImpl* impl = as_lazy(tensor);
  TXLA_CHECK_KIND(util::ErrorKind::Type, impl != nullptr, who,
                  ": expected an xla tensor, got one on ", tensor.device().str(),
                  ". Move it with .to('xla').");
  return *impl;
}

at::Tensor make_tensor(Value value, const Geometry* geometry, int device) {
  return at::Tensor(c10::make_intrusive<TensorImpl>(
      c10::make_intrusive<Storage>(geometry, device, std::move(value)), geometry, 0,
      c10::intrusive_ptr<View>()));
}

at::Tensor make_view(const TensorImpl& of, c10::intrusive_ptr<View> view, const Geometry* geometry,
                     int64_t offset) {
  if (Recording* recording = Recording::current()) recording->before_read(of);
  return at::Tensor(c10::make_intrusive<TensorImpl>(of, geometry, offset, std::move(view)));
}

}  // namespace torch_xla::lazy
