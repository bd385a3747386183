// Recording, a function that is being recorded, as tensors and storages see it: they tell it before
// they are read, and ask it before they are written.
#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

#include "lazy/lock.h"
#include "lazy/node.h"

namespace torch_xla::lazy {

class Storage;
class TensorImpl;

// While it lives, no sync computes values that are written, and storages made before it cannot be
// written unless it lends them. Tensors that outlive it, as those of an exception's frames may,
// have no value that a sync could compute. It lives in one scope of one thread and holds the
// GraphLock.
class Recording {
 public:
  Recording() : outer_(std::exchange(innermost_, this)) {
    living_.fetch_add(1, std::memory_order_relaxed);
  }
  virtual ~Recording() {
    living_.fetch_sub(1, std::memory_order_relaxed);
    innermost_ = outer_;
  }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  // Returns the innermost recording of the calling thread, or null.
  static Recording* current() {
    if (living_.load(std::memory_order_relaxed) == 0) [[likely]]
      return nullptr;
    return innermost_;
  }

  // Returns whether the storage or node with this id was made since the recording began.
  bool has_made(uint64_t id) const { return id > start_; }

  // Called before a value is read: the recording may replace it (lent state).
  virtual void before_read(Storage& storage) {
    if (outer_ != nullptr) outer_->before_read(storage);
  }
  // Called before a tensor is read, and before a view of it is made.
  virtual void before_read(const TensorImpl& tensor) {
    if (outer_ != nullptr) outer_->before_read(tensor);
  }
  // Returns whether the function may write a storage that was made before the recording.
  virtual bool lends(Storage& /*storage*/) { return false; }
  // Returns whether tensors that were made before a recording on this thread are lent to it.
  virtual bool lends_state() const { return outer_ != nullptr && outer_->lends_state(); }
  // Returns the place of the order of exchanges; null where a function may exchange nothing.
  virtual Value* order_of_exchanges() { return nullptr; }
  // Returns whether the function becomes a program for others, which checks no values.
  virtual bool is_export() const { return outer_ != nullptr && outer_->is_export(); }

 private:
  const GraphLock lock_;
  Recording* const outer_;
  const uint64_t start_ = id_boundary();
  inline static std::atomic<int> living_ = 0;  // of all threads: asking it is cheap
  inline static thread_local Recording* innermost_ = nullptr;
};

}  // namespace torch_xla::lazy
