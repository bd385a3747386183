#include "lazy/stack.h"

#include <atomic>

namespace torch_xla::lazy {
namespace {

std::atomic<StackReader> reader{nullptr};

}  // namespace

SourceFrames stack_here() {
  const StackReader read = reader.load(std::memory_order_acquire);
  return read == nullptr ? SourceFrames() : read();
}

void set_stack_reader(StackReader function) { reader.store(function, std::memory_order_release); }

}  // namespace torch_xla::lazy
