#include "cpu/numbers.h"

#include <cstring>

#include "cpu/ffi_frame.h"
#include "hlo/ops.h"

namespace torch_xla::cpu {
namespace {

XLA_FFI_Error* cut(XLA_FFI_CallFrame* frame) {
  if (!ffi_executes(*frame)) return nullptr;
  int64_t next = 0;
  for (int64_t i = 0; i < frame->args.size; ++i) {
    const auto& packed = *static_cast<const XLA_FFI_Buffer*>(frame->args.args[i]);
    const char* from = static_cast<const char*>(packed.data);
    for (int64_t n = 0; n < packed.dims[0] && next < frame->rets.size; ++n, from += 8) {
      std::memcpy(static_cast<const XLA_FFI_Buffer*>(frame->rets.rets[next++])->data, from, 8);
    }
  }
  return nullptr;
}

}  // namespace

void* numbers_handler() { return reinterpret_cast<void*>(&cut); }

hlo::Values cut_numbers(std::span<const hlo::Value> packed) {
  std::vector<hlo::Type> types;
  for (const hlo::Value& array : packed)
    types.insert(types.end(), array.dim(0), {array.dtype(), {}});
  return hlo::custom_call(packed.front().builder(), kNumbersTarget, packed, types, "{}");
}

}  // namespace torch_xla::cpu
