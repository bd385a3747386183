#include "util/fork_mutex.h"

#include <mutex>
#include <vector>

#include <pthread.h>

namespace torch_xla::util {

// Around fork() the forking thread holds all of them.
struct ForkMutex::All {
  std::mutex mutex;
  std::vector<ForkMutex*> list;

  static All& get() {
    static All& all = *[] {
      pthread_atfork([] { get().lock(); }, [] { get().unlock(); }, [] { get().unlock(); });
      return new All;
    }();
    return all;
  }

  void lock() {
    mutex.lock();
    for (ForkMutex* one : list) one->lock();
  }
  void unlock() {
    for (ForkMutex* one : list) one->unlock();
    mutex.unlock();
  }
};

ForkMutex::ForkMutex() {
  All& all = All::get();
  const std::lock_guard lock(all.mutex);
  all.list.push_back(this);
}

}  // namespace torch_xla::util
