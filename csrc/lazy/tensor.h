// TensorImpl, the tensor that PyTorch sees: true sizes and strides over a Storage that holds no
// memory. All tensors that share a storage share its value. A view is a chain of calls: reading the
// view replays the chain on that value, writing inverts it.
#pragma once

#include <atomic>
#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include "lazy/device.h"
#include "lazy/lock.h"
#include "lazy/node.h"

namespace torch_xla::spmd {
struct Sharding;
}

namespace torch_xla::lazy {

class View;

// A storage with a value in place of bytes. Its geometry is that of the tensor it was made for.
// Guarded by GraphLock.
class Storage final : public c10::StorageImpl {
 public:
  Storage(const Geometry* geometry, int device, Value value);
  ~Storage() override;

  const Geometry& geometry() const { return *geometry_; }
  int device_index() const { return device_index_; }

  // Returns the value, row-major in the geometry's sizes. An uninitialised storage reads as zeros.
  const Value& value();
  bool has_value() const { return static_cast<bool>(value_); }
  void set_value(Value value);
  // Replaces the value by its data, which the run has computed. Views are replayed from the data
  // or, if the run has reused no buffers, may keep what they were made of.
  void materialize(Value data, bool replay_views = true);
  // Does so where the run is still to be launched: until then this counts as pending.
  void promise(Value data);
  // Marks that a call which the value needs has failed. Until another value is written, a read
  // computes this one, and no sync does.
  void set_aside() { unlink(); }
  // Names a value that this storage held before the present one, back to the last that was
  // computed. Its node may be gone.
  struct Past {
    uint64_t node;  // Node::id()
    uint32_t index;
  };
  const std::vector<Past>& past() const { return past_; }  // the oldest first
  // Returns to `value`, which is past()[i], and forgets all that was written since.
  void take_back(size_t i, Value value);
  // Holds another value from now on, which is no write: what it held before is not remembered.
  void hold(Value value);
  // Returns the value without a word to the recording; undefined before the first write.
  const Value& held() const { return value_; }
  uint64_t id() const { return id_; }  // next_id() of the time it was made
  // Adds the nodes that views keep until they are replayed.
  void add_kept_by_views(std::vector<const Node*>& nodes) const;
  // Takes another geometry and other contents (resize_, set_).
  void reset(const Geometry* geometry, Value value);

  // The sharding that the user wants for the value, null where nothing was said.
  const spmd::Sharding* sharding() const { return sharding_; }
  void set_sharding(const spmd::Sharding* sharding) { sharding_ = sharding; }

  // Calls `visit` with every storage of a device whose value waits to be computed, in the order in
  // which they were last written.
  static void for_each_pending(int device, const std::function<void(Storage&)>& visit);

 private:
  void check_writable(bool may_be_lent);
  void link();
  void unlink();
  void replay_views();

  const Geometry* geometry_;
  Device& device_;
  int device_index_;
  const uint64_t id_ = next_id();
  Value value_;
  std::vector<Past> past_;
  const spmd::Sharding* sharding_ = nullptr;
  View* readers_ = nullptr;  // views that keep what they have read, until the value changes
  Storage* previous_ = nullptr;
  Storage* next_ = nullptr;
  bool linked_ = false;

  friend class View;
};

// One step from a storage's value (or a parent view) to a view: result `index` of the call `step`.
class View final : public c10::intrusive_ptr_target {
 public:
  // The offset of a view whose elements are computed (conjugated, say) and not those of memory.
  static constexpr int64_t kComputed = -1;

  View(c10::intrusive_ptr<View> parent, c10::intrusive_ptr<const Signature> step, uint32_t index,
       int64_t offset);
  // The same step from another view.
  View(c10::intrusive_ptr<View> parent, const View& step)
      : parent_(std::move(parent)),
        step_(step.step_),
        index_(step.index_),
        offset_(step.offset_),
        source_(step.source_) {}
  ~View() override;

  const c10::intrusive_ptr<View>& parent() const { return parent_; }
  const c10::intrusive_ptr<const Signature>& step() const { return step_; }
  uint32_t index() const { return index_; }
  const Geometry* geometry() const { return step_->outputs[index_]; }
  int64_t offset() const { return offset_; }  // in the storage, in elements

  // Returns the view of the storage's present value; replays it only when that value has changed.
  Value read(Storage& storage);
  // Replaces `value`, which read() gave, by its data.
  void computed(const Value& value, const Value& data) {
    if (cached_ == value) cached_ = data;
  }
  // Keeps `value`, which the caller has written through this view into the storage.
  void remember(Storage& storage, Value value);

 private:
  void forget();

  c10::intrusive_ptr<View> parent_;
  c10::intrusive_ptr<const Signature> step_;
  uint32_t index_;
  int64_t offset_;
  Source source_;  // where the view was made, which is not where it is read
  // The value that was read or written, kept until the storage's value changes; and this view's
  // place in the storage's list of such views.
  Value cached_;
  std::atomic<Storage*> storage_{nullptr};
  View* previous_ = nullptr;
  View* next_ = nullptr;

  friend class Storage;
};

// Counts the tensors that were made, and those of them that are gone.
struct TensorCounts {
  std::atomic<int64_t> made = 0, gone = 0;
};
extern TensorCounts tensor_counts;

class TensorImpl final : public c10::TensorImpl {
 public:
  TensorImpl(c10::intrusive_ptr<c10::StorageImpl> storage, const Geometry* geometry, int64_t offset,
             c10::intrusive_ptr<View> view);

  // A view of `source`: in inference mode it is an inference tensor only if its source is one.
  TensorImpl(const TensorImpl& source, const Geometry* geometry, int64_t offset,
             c10::intrusive_ptr<View> view);

  ~TensorImpl() override;

  const Geometry* geometry() const { return geometry_; }
  Storage& lazy_storage() const { return static_cast<Storage&>(*storage_.unsafeGetStorageImpl()); }
  const c10::intrusive_ptr<View>& view() const { return view_; }
  int device_index() const { return lazy_storage().device_index(); }

  // Returns next_id() of the time it was made.
  uint64_t id() const { return id_; }

  Value read() const;
  // Replaces `value`, which read() gave, by its data, so that no later read computes it again.
  void computed(const Value& value, const Value& data) const;
  // Replaces everything this tensor holds by another tensor's (set_, in-place views, resize_).
  void assign(c10::intrusive_ptr<c10::StorageImpl> storage, const Geometry* geometry,
              int64_t offset, c10::intrusive_ptr<View> view);

  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      const c10::VariableVersion& version_counter, bool allow_metadata_change) const override;
  c10::intrusive_ptr<c10::TensorImpl> shallow_copy_and_detach(
      c10::VariableVersion&& version_counter, bool allow_metadata_change) const override;
  void shallow_copy_from(const c10::intrusive_ptr<c10::TensorImpl>& impl) override;

 private:
  void set_geometry(const Geometry* geometry, int64_t offset);
  const char* tensorimpl_type_name() const override { return "torch_xla::TensorImpl"; }

  const uint64_t id_ = next_id();
  const Geometry* geometry_;
  c10::intrusive_ptr<View> view_;
};

// Returns the tensor's TensorImpl, or null: kernels on key XLA also meet other classes
// (FakeTensor).
TensorImpl* as_lazy(const at::Tensor& tensor);
// Returns the tensor's TensorImpl; throws a TypeError in the name of `who` where there is none.
TensorImpl& expect_lazy(const at::Tensor& tensor, const char* who);
inline bool is_lazy(const at::Tensor& tensor) { return as_lazy(tensor) != nullptr; }

// Makes a tensor that owns a new storage with this value.
at::Tensor make_tensor(Value value, const Geometry* geometry, int device);
at::Tensor make_view(const TensorImpl& of, c10::intrusive_ptr<View> view, const Geometry* geometry,
                     int64_t offset);

// The layer above supplies these functions. They record the value of an uninitialised storage,
// zeros, and a value equal to another, and read a storage that has taken another geometry
// (resize_): elements keep their places in its memory.
extern Value (*zeros_value)(const Geometry& geometry, int device);
extern Value (*copy_value)(const Value& value);
extern Value (*read_over)(Storage& storage, const Geometry& geometry);

// Returns the value of a storage for a tensor that was made when it had this geometry.
inline Value value_over(Storage& storage, const Geometry& geometry) {
  return &geometry == &storage.geometry() ? storage.value() : read_over(storage, geometry);
}

}  // namespace torch_xla::lazy
