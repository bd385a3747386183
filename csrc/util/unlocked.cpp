#include "util/unlocked.h"

#include <atomic>
#include <utility>

namespace torch_xla::util {
namespace {

std::atomic<const InterpreterLock*> interpreter_lock{nullptr};

}  // namespace

void set_interpreter_lock(const InterpreterLock& lock) {
  interpreter_lock = new InterpreterLock(lock);  // lives as long as the process
}

Unlocked::Unlocked() : held_(nullptr) {
  if (const InterpreterLock* lock = interpreter_lock) held_ = lock->release();
}

void Unlocked::end() {
  void* held = std::exchange(held_, nullptr);
  if (held != nullptr) interpreter_lock.load()->take(held);
}

}  // namespace torch_xla::util
