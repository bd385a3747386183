#include "util/unlocked.h"

#include <atomic>
#include <utility>

#include "util/lock_order.h"

namespace torch_xla::util {
namespace {

std::atomic<const InterpreterLock*> interpreter_lock{nullptr};

}  // namespace

void set_interpreter_lock(const InterpreterLock& lock) {
  interpreter_lock = new InterpreterLock(lock);  // lives as long as the process
}

bool holds_interpreter() {
  const InterpreterLock* lock = interpreter_lock;
  return lock != nullptr && lock->is_held();
}

Unlocked::Unlocked() : held_(nullptr) {
  if (const InterpreterLock* lock = interpreter_lock) held_ = lock->release();
}

void Unlocked::end() {
  void* held = std::exchange(held_, nullptr);
  if (held == nullptr) return;
  about_to_wait_for(Rank::Interpreter);
  interpreter_lock.load()->take(held);
}

}  // namespace torch_xla::util
