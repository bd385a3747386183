#include "util/interpreter.h"

#include <atomic>

namespace torch_xla::util {
namespace {

std::atomic<const InterpreterLock*> installed{nullptr};

}  // namespace

void set_interpreter_lock(const InterpreterLock& lock) {
  installed = new InterpreterLock(lock);  // lives as long as the process
}

const InterpreterLock* interpreter_lock() { return installed; }

bool holds_interpreter() {
  const InterpreterLock* lock = installed;
  return lock != nullptr && lock->is_held();
}

}  // namespace torch_xla::util
