// The ABI of the PJRT FFI extension, which pjrt_c_api.h leaves to a header that wheels do not ship.
// Only the layout matters: fields up to register_handler have kept their place since they exist.
#pragma once

#include <cstddef>
#include <cstdint>

#include <pjrt_c_api.h>

namespace torch_xla::pjrt {

struct FfiRegisterHandlerArgs {
  size_t struct_size;
  const char* target_name;
  size_t target_name_size;
  void* handler;  // an XLA_FFI_Handler*
  const char* platform_name;
  size_t platform_name_size;
  uint32_t traits;  // 1: may run inside a recorded command buffer
};
inline constexpr size_t kFfiRegisterHandlerArgsSize =
    offsetof(FfiRegisterHandlerArgs, traits) + sizeof(uint32_t);

struct FfiExtension {
  PJRT_Extension_Base base;
  void* register_type;
  void* add_user_data;
  PJRT_Error* (*register_handler)(FfiRegisterHandlerArgs* args);
};
inline constexpr size_t kFfiExtensionSize =
    offsetof(FfiExtension, register_handler) + sizeof(void*);

}  // namespace torch_xla::pjrt
