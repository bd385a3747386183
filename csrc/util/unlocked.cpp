#include "util/unlocked.h"

#include <utility>

#include "util/interpreter.h"
#include "util/lock_order.h"

namespace torch_xla::util {

Unlocked::Unlocked() : held_(nullptr) {
  if (const InterpreterLock* lock = interpreter_lock()) held_ = lock->release();
}

void Unlocked::end() {
  void* held = std::exchange(held_, nullptr);
  if (held == nullptr) return;
  about_to_wait_for(Rank::Interpreter);
  interpreter_lock()->take(held);
}

}  // namespace torch_xla::util
