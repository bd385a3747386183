#include "ops/host/in_memory.h"

#include <array>

#include "hlo/ops.h"
#include "ops/host/ffi_frame.h"

namespace torch_xla::ops {
namespace {

XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame) {
  ffi_executes(*frame);  // the result lies where the operand does
  return nullptr;
}

}  // namespace

void* in_memory_handler() { return reinterpret_cast<void*>(&handle); }

hlo::Value in_memory(const hlo::Value& value) {
  const std::array<hlo::Type, 1> types = {value.type()};
  const std::array<std::pair<int64_t, int64_t>, 1> aliases = {{{0, 0}}};
  return hlo::custom_call(value.builder(), kInMemoryTarget, std::span(&value, 1), types, "{}",
                          false, aliases)[0];
}

}  // namespace torch_xla::ops
