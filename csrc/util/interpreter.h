// The interpreter's lock, as C++ below the bindings sees it. The Python bindings say how to take
// it; C++ programs have no such lock.
#pragma once

namespace torch_xla::util {

// `release` lets the lock go and returns what `take` needs to take it again; null where the calling
// thread does not hold it.
struct InterpreterLock {
  bool (*is_held)();
  void* (*release)();
  void (*take)(void* held);
};
void set_interpreter_lock(const InterpreterLock& lock);
// Null where there is no interpreter.
const InterpreterLock* interpreter_lock();
// Returns whether the calling thread holds it.
bool holds_interpreter();

}  // namespace torch_xla::util
