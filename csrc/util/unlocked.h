// Lets the interpreter's lock go while a thread waits, so that other threads run Python meanwhile.
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

}  // namespace torch_xla::util
