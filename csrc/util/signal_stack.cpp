#include "util/signal_stack.h"

#include <csignal>
#include <cstddef>

#include <sys/mman.h>

namespace torch_xla::util {

bool widen_signal_stack() {
  constexpr std::size_t kSize = std::size_t{1} << 20;
  void* memory =  // for as long as the process lives
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return false;
  stack_t stack{};
  stack.ss_sp = memory;
  stack.ss_size = kSize;
  return sigaltstack(&stack, nullptr) == 0;
}

}  // namespace torch_xla::util
