#include "lazy/stack.h"

#include <atomic>

namespace torch_xla::lazy {
namespace {

std::atomic<StackReader> stack_reader{nullptr};

}  // namespace

SourceFrames stack_here() {
  const StackReader read = stack_reader.load(std::memory_order_acquire);
  return read == nullptr ? SourceFrames() : read();
}

void set_stack_reader(StackReader function) {
  stack_reader.store(function, std::memory_order_release);
}

}  // namespace torch_xla::lazy
