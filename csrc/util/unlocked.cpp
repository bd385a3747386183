#include "util/unlocked.h"

#include <utility>

#include "util/hooks.h"
#include "util/lock_order.h"

namespace torch_xla::util {

Unlocked::Unlocked() : held_(nullptr) {
  if (hooks.release_interpreter != nullptr) held_ = hooks.release_interpreter();
}

void Unlocked::end() {
  void* held = std::exchange(held_, nullptr);
  if (held == nullptr) return;
  about_to_wait_for(Rank::Interpreter);
  hooks.take_interpreter(held);
}

}  // namespace torch_xla::util
