// Common to the XLA FFI handlers of this project: each asks ffi_executes() before its own work.
#pragma once

#include <xla/ffi/api/c_api.h>

namespace torch_xla::cpu {

// Returns whether the handler is asked to run. Otherwise it is asked which version of the FFI it
// was built with, which this answers, or is told of an earlier stage of the call, where it has
// nothing to do.
inline bool ffi_executes(const XLA_FFI_CallFrame& frame) {
  if (frame.extension_start != nullptr &&
      frame.extension_start->type == XLA_FFI_Extension_Metadata) {
    auto* extension = reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame.extension_start);
    extension->metadata->api_version.major_version = XLA_FFI_API_MAJOR;
    extension->metadata->api_version.minor_version = XLA_FFI_API_MINOR;
    extension->metadata->traits = 0;
    return false;
  }
  return frame.stage == XLA_FFI_ExecutionStage_EXECUTE;
}

// Returns whether the runtime did what it was asked; what it says otherwise is dropped.
inline bool succeeded(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  if (error == nullptr) return true;
  XLA_FFI_Error_Destroy_Args args = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  api->XLA_FFI_Error_Destroy(&args);
  return false;
}

}  // namespace torch_xla::cpu
