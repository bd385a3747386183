#include "ops/host/numbers.h"

#include <cstring>

#include <xla/ffi/api/c_api.h>

#include "hlo/ops.h"

namespace torch_xla::ops {
namespace {

XLA_FFI_Error* handle(XLA_FFI_CallFrame* frame) {
  if (frame->extension_start != nullptr &&
      frame->extension_start->type == XLA_FFI_Extension_Metadata) {
    auto* extension = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame->extension_start);
    extension->metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    extension->metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    extension->metadata->traits = 0;
    return nullptr;
  }
  if (frame->stage != XLA_FFI_ExecutionStage_EXECUTE) return nullptr;
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

void* numbers_handler() { return reinterpret_cast<void*>(&handle); }

hlo::Values cut_numbers(std::span<const hlo::Value> packed) {
  std::vector<hlo::Type> types;
  for (const hlo::Value& array : packed)
    types.insert(types.end(), array.dim(0), {array.dtype(), {}});
  return hlo::custom_call(packed.front().builder(), kNumbersTarget, packed, types, "{}");
}

}  // namespace torch_xla::ops
