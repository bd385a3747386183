// A mutex that a child process finds free, whatever other threads were at when it was forked.
// For short sections that take no other lock. It must never be destroyed.
#pragma once

#include <mutex>

namespace torch_xla::util {

class ForkMutex {
 public:
  ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct All;

  std::mutex mutex_;
};

}  // namespace torch_xla::util
