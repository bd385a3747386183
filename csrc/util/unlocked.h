// Lets the interpreter's lock go while a thread waits, so that other threads run Python meanwhile.
// The Python bindings say how; C++ programs have no such lock.
#pragma once

namespace torch_xla::util {

class Unlocked {
 public:
  Unlocked();
  ~Unlocked() { end(); }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

  // Takes the lock again. An interpreter that has ended ends its threads here by an exception,
  // which may not leave a destructor.
  void end();

 private:
  void* held_;
};

// `release` lets the lock go and returns what `take` needs to take it again; null where the calling
// thread does not hold it.
struct InterpreterLock {
  bool (*is_held)();
  void* (*release)();
  void (*take)(void* held);
};
void set_interpreter_lock(const InterpreterLock& lock);
// Whether the calling thread holds it.
bool holds_interpreter();

}  // namespace torch_xla::util
