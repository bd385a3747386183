// What the plugins for tests share that stand before the CPU plugin: they change some of its calls
// and return errors of their own. Each plugin is one source.
#pragma once

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include <dlfcn.h>
#include <pjrt_c_api.h>

#include "pjrt/methods.h"

// Each has its own: the loader would give all of them one of what is only inline.
namespace {

const PJRT_Api* real = nullptr;

// Calls the real plugin.
template <auto Field>
PJRT_Error* call_real(typename torch_xla::pjrt::Method<Field>::Args& args) {
  args.struct_size = torch_xla::pjrt::Method<Field>::args_size;
  return (real->*Field)(&args);
}

// --- errors -----------------------------------------------------------------------------------

struct Failure {
  PJRT_Error_Code code;
  std::string text;
};

std::mutex errors_mutex;
std::set<const void*> live_errors;  // those that are a Failure; the others are the real plugin's

inline PJRT_Error* error_of(const Failure& failure) {
  auto* error = new Failure(failure);
  const std::lock_guard lock(errors_mutex);
  live_errors.insert(error);
  return reinterpret_cast<PJRT_Error*>(error);
}

inline const Failure* as_failure(const PJRT_Error* error) {
  const std::lock_guard lock(errors_mutex);
  return live_errors.contains(error) ? reinterpret_cast<const Failure*>(error) : nullptr;
}

inline void destroy_error(PJRT_Error_Destroy_Args* args) {
  const Failure* failure = as_failure(args->error);
  if (failure == nullptr) return real->PJRT_Error_Destroy(args);
  const std::lock_guard lock(errors_mutex);
  live_errors.erase(args->error);
  delete failure;
}

inline void message_of_error(PJRT_Error_Message_Args* args) {
  const Failure* failure = as_failure(args->error);
  if (failure == nullptr) return real->PJRT_Error_Message(args);
  args->message = failure->text.data();
  args->message_size = failure->text.size();
}

inline PJRT_Error* code_of_error(PJRT_Error_GetCode_Args* args) {
  const Failure* failure = as_failure(args->error);
  if (failure == nullptr) return real->PJRT_Error_GetCode(args);
  args->code = failure->code;
  return nullptr;
}

// --- the plugin -------------------------------------------------------------------------------

// Returns the CPU plugin's functions with errors as above, for the caller to change others; null
// where it cannot be opened. To be called once.
inline PJRT_Api* wrap_cpu_plugin() {
  static PJRT_Api api;
  void* library = dlopen(TORCH_XLA_TEST_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  real = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"))();
  std::memcpy(&api, real, std::min(sizeof(api), real->struct_size));
  api.PJRT_Error_Destroy = destroy_error;
  api.PJRT_Error_Message = message_of_error;
  api.PJRT_Error_GetCode = code_of_error;
  return &api;
}

inline size_t num_outputs(PJRT_LoadedExecutable* loaded) {
  PJRT_LoadedExecutable_GetExecutable_Args get{};
  get.loaded_executable = loaded;
  call_real<&PJRT_Api::PJRT_LoadedExecutable_GetExecutable>(get);
  PJRT_Executable_NumOutputs_Args count{};
  count.executable = get.executable;
  call_real<&PJRT_Api::PJRT_Executable_NumOutputs>(count);
  PJRT_Executable_Destroy_Args destroy{};
  destroy.executable = get.executable;
  call_real<&PJRT_Api::PJRT_Executable_Destroy>(destroy);
  return count.num_outputs;
}

}  // namespace
