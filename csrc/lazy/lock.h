// The one lock of the recorded graph: taken once per recorded call and for the walk of a sync.
// Recursive, because lowering may record. A waiter first lets the Python lock go, so that the
// holder can always enter Python.
#pragma once

namespace torch_xla::lazy {

class GraphLock {
 public:
  GraphLock() {
    if (depth_++ == 0) acquire();
  }
  ~GraphLock() {
    if (--depth_ == 0) release();
  }
  GraphLock(const GraphLock&) = delete;
  GraphLock& operator=(const GraphLock&) = delete;

 private:
  static void acquire();
  static void release();

  static thread_local int depth_;
};

}  // namespace torch_xla::lazy
