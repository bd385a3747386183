// The ABI of the PJRT profiler extension, which pjrt_c_api.h leaves to headers that wheels do not
// ship (version 1 of xla/backends/profiler/plugin/profiler_c_api.h in the OpenXLA project).
#pragma once

#include <cstddef>
#include <cstdint>

#include <pjrt_c_api.h>

namespace torch_xla::pjrt {

struct ProfilerHandle;  // the plugin's
struct ProfilerError;

struct ProfilerErrorArgs {
  size_t struct_size;
  void* priv;
  ProfilerError* error;
};

struct ProfilerErrorMessageArgs {
  size_t struct_size;
  void* priv;
  const ProfilerError* error;
  const char* message;  // out, of the error's lifetime
  size_t message_size;
};

struct ProfilerErrorCodeArgs {
  size_t struct_size;
  void* priv;
  const ProfilerError* error;
  int32_t code;  // out, numbered as PJRT_Error_Code
};

struct ProfilerCreateArgs {
  size_t struct_size;
  const char* options;  // a serialized tensorflow.ProfileOptions
  size_t options_size;
  ProfilerHandle* profiler;  // out
};

struct ProfilerArgs {  // of destroy, start and stop
  size_t struct_size;
  ProfilerHandle* profiler;
};

struct ProfilerCollectArgs {
  size_t struct_size;
  ProfilerHandle* profiler;
  // A serialized tensorflow.profiler.XSpace. Null asks for its size; the plugin may answer with
  // memory of its own at once, which is there as long as the profiler.
  uint8_t* buffer;
  size_t buffer_size;  // out
};

struct ProfilerApi {
  size_t struct_size;
  void* priv;
  ProfilerError* (*error_destroy)(ProfilerErrorArgs*);
  ProfilerError* (*error_message)(ProfilerErrorMessageArgs*);
  ProfilerError* (*error_code)(ProfilerErrorCodeArgs*);
  ProfilerError* (*create)(ProfilerCreateArgs*);
  ProfilerError* (*destroy)(ProfilerArgs*);
  ProfilerError* (*start)(ProfilerArgs*);
  ProfilerError* (*stop)(ProfilerArgs*);
  ProfilerError* (*collect)(ProfilerCollectArgs*);
};

struct ProfilerExtension {
  PJRT_Extension_Base base;
  ProfilerApi* api;  // null where the extension only says to which trace a call belongs
};
inline constexpr size_t kProfilerExtensionSize = offsetof(ProfilerExtension, api) + sizeof(void*);

}  // namespace torch_xla::pjrt
