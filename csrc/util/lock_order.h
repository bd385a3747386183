// The order in which threads wait for one another: who holds one of the ranks waits only for later
// ones, so that no threads wait in a circle. Debug builds (TORCH_XLA_DEBUG) check it, whether or
// not anybody is in the way.
#pragma once

#include <cstdint>
#include <mutex>

namespace torch_xla::util {

// A mutex has a rank, and so has what a thread waits for that another one is to bring about.
enum class Rank : uint8_t {
  Graph,        // the lock of the recorded graph
  Compiler,     // the end of a compilation; the thread that compiles holds it
  Device,       // the end of runs and copies; the plugin's threads hold it
  Interpreter,  // Python's lock; who waits for an earlier rank lets it go first (util/unlocked.h)
  Startup,      // the choice of a plugin and its client
  Section,      // a mutex that guards a few lines, which wait for nothing
};

#ifdef TORCH_XLA_DEBUG
inline constexpr bool kChecksLockOrder = true;
#else
inline constexpr bool kChecksLockOrder = false;
#endif

namespace lock_order {

// Throws unless the calling thread holds earlier ranks only, of those that it was said to hold.
void check_held(Rank wanted);
// Throws as well where it holds the interpreter's lock and that comes after.
void check(Rank wanted);
void hold(Rank rank);
void let_go(Rank rank);

}  // namespace lock_order

// Stands before a wait for what another thread is to bring about.
inline void about_to_wait_for(Rank rank) {
  if constexpr (kChecksLockOrder) lock_order::check(rank);
}

// While it lives, others may wait for the calling thread.
class Awaited {
 public:
  explicit Awaited(Rank rank) : rank_(rank) {
    if constexpr (kChecksLockOrder) lock_order::hold(rank_);
  }
  ~Awaited() {
    if constexpr (kChecksLockOrder) lock_order::let_go(rank_);
  }
  Awaited(const Awaited&) = delete;
  Awaited& operator=(const Awaited&) = delete;

 private:
  const Rank rank_;
};

template <bool kIsChecked>
class RankedMutex {
 public:
  constexpr explicit RankedMutex(Rank rank = Rank::Section) : rank_(rank) {}
  RankedMutex(const RankedMutex&) = delete;
  RankedMutex& operator=(const RankedMutex&) = delete;

  void lock() {
    if constexpr (kIsChecked) lock_order::check_held(rank_);
    mutex_.lock();
    if constexpr (kIsChecked) lock_order::hold(rank_);
  }
  // The order holds for this too: what does not wait now may wait where threads meet otherwise.
  bool try_lock() {
    if constexpr (kIsChecked) lock_order::check_held(rank_);
    if (!mutex_.try_lock()) return false;
    if constexpr (kIsChecked) lock_order::hold(rank_);
    return true;
  }
  void unlock() {
    mutex_.unlock();
    if constexpr (kIsChecked) lock_order::let_go(rank_);
  }

 private:
  std::mutex mutex_;
  const Rank rank_;
};

using Mutex = RankedMutex<kChecksLockOrder>;

}  // namespace torch_xla::util
