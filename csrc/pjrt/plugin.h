// Plugin, a shared library that exports GetPjrtApi, and call(), which makes every call of its C
// API. Sizes and names come from pjrt_c_api.h itself, so plugins may be older or newer than the
// header.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <pjrt_c_api.h>

#include "pjrt/methods.h"

namespace torch_xla::pjrt {

// Returns "RESOURCE_EXHAUSTED" for PJRT_Error_Code_RESOURCE_EXHAUSTED.
const char* code_name(PJRT_Error_Code code);

// Reports every failure of a plugin; the text reads "[PJRT_Method] CODE: text".
class Error : public std::runtime_error {
 public:
  Error(std::string method, PJRT_Error_Code code, const std::string& text);
  PJRT_Error_Code code() const { return code_; }
  const std::string& method() const { return method_; }

 private:
  std::string method_;
  PJRT_Error_Code code_;
};

// The value of a client option, a plugin or device attribute, a compile option or a cost property.
// bool stands before int64_t: bindings take the first type that fits, and Python's True is an int.
using OptionValue = std::variant<std::string, bool, int64_t, float, std::vector<int64_t>>;
using Options = std::map<std::string, OptionValue>;

class Plugin {
 public:
  // Opens the library, checks the version (only the major number must match) and initializes the
  // plugin. Loading a path again returns the same object; a plugin is never unloaded.
  static std::shared_ptr<Plugin> load(const std::string& library_path);

  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  // Calls one method: `plugin.call<&PJRT_Api::PJRT_Client_Create>(args)`, with value-initialized
  // `args`. Throws Error, also when the plugin is older than the method.
  template <auto Field>
  void call(typename Method<Field>::Args& args) const {
    if (PJRT_Error* error = try_call<Field>(args)) throw_error(error, Method<Field>::name);
  }

  // Does the same for callers that must not throw; they free the error (free_error).
  template <auto Field>
  PJRT_Error* try_call(typename Method<Field>::Args& args) const {
    args.struct_size = Method<Field>::args_size;
    return function<Field>()(&args);
  }

  // Calls a method that plugins may lack: returns false where this one has no such method or
  // answers that it is not implemented. Throws other errors.
  template <auto Field>
  bool call_if_implemented(typename Method<Field>::Args& args) const {
    if (!has<Field>()) return false;
    PJRT_Error* error = try_call<Field>(args);
    if (error == nullptr) return true;
    const Error failure = take_error(error, Method<Field>::name);
    if (failure.code() == PJRT_Error_Code_UNIMPLEMENTED) return false;
    throw failure;
  }

  template <auto Field>
  bool has() const {
    return Method<Field>::end_in_api <= api_->struct_size && api_->*Field != nullptr;
  }

  // Frees `error` and throws it as an Error.
  [[noreturn]] void throw_error(PJRT_Error* error, const char* method) const;
  Error take_error(PJRT_Error* error, const char* method) const;
  void free_error(PJRT_Error* error) const noexcept;

  const std::string& path() const { return path_; }
  int api_major() const { return api_->pjrt_api_version.major_version; }
  int api_minor() const { return api_->pjrt_api_version.minor_version; }
  const PJRT_Api* api() const { return api_; }

  // Returns the plugin's extension of this type, or null.
  const PJRT_Extension_Base* find_extension(PJRT_Extension_Type type) const;

  // Returns xla_version, stablehlo_current_version (a list of three numbers) and others.
  const Options& attributes() const { return attributes_; }

 private:
  Plugin(std::string path, const PJRT_Api* api);
  [[noreturn]] void throw_missing(const char* method) const;

  template <auto Field>
  auto function() const {
    if (!has<Field>()) [[unlikely]]
      throw_missing(Method<Field>::name);
    return api_->*Field;
  }

  std::string path_;
  const PJRT_Api* api_;
  Options attributes_;
};

// Reads an array of named values that a plugin returned, with the plugin's own struct size.
Options read_named_values(const PJRT_NamedValue* values, size_t count);

// Converts options to the form that the C API takes; the result points into `options`.
std::vector<PJRT_NamedValue> to_named_values(const Options& options);

// Makes `handler` (an XLA_FFI_Handler*) callable from programs as the custom call `target_name`.
// Returns false when the plugin has no FFI extension or one too old to register handlers.
bool register_ffi_handler(const Plugin& plugin, std::string_view target_name, void* handler,
                          std::string_view platform = "Host");

}  // namespace torch_xla::pjrt
