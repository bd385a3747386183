#include "pjrt/plugin.h"

#include <cstdlib>
#include <mutex>
#include <utility>

#include <dlfcn.h>

#include "pjrt/ffi_extension.h"
#include "util/lock_order.h"

namespace torch_xla::pjrt {

const char* code_name(PJRT_Error_Code code) {
  switch (code) {
#define CASE(NAME)             \
  case PJRT_Error_Code_##NAME: \
    return #NAME;
    CASE(OK)
    CASE(CANCELLED)
    CASE(UNKNOWN)
    CASE(INVALID_ARGUMENT)
    CASE(DEADLINE_EXCEEDED)
    CASE(NOT_FOUND)
    CASE(ALREADY_EXISTS)
    CASE(PERMISSION_DENIED)
    CASE(RESOURCE_EXHAUSTED)
    CASE(FAILED_PRECONDITION)
    CASE(ABORTED)
    CASE(OUT_OF_RANGE)
    CASE(UNIMPLEMENTED)
    CASE(INTERNAL)
    CASE(UNAVAILABLE)
    CASE(DATA_LOSS)
    CASE(UNAUTHENTICATED)
#undef CASE
  }
  return "UNKNOWN";
}

Error::Error(std::string method, PJRT_Error_Code code, const std::string& text)
    : std::runtime_error("[" + method + "] " + code_name(code) + ": " + text),
      method_(std::move(method)),
      code_(code) {}

namespace {

std::string canonical_path(const std::string& path) {
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr) return path;  // dlopen searches for a bare name, or says why it cannot
  std::string result(resolved);
  free(resolved);
  return result;
}

const PJRT_Api* open_library(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    throw Error("dlopen", PJRT_Error_Code_NOT_FOUND,
                "PJRT plugin: expected a loadable shared library at '" + path +
                    "', got: " + (reason ? reason : "no reason given") +
                    ". Check the path (PJRT_LIBRARY_PATH), or install the plugin's package again.");
  }
  using GetPjrtApi = const PJRT_Api* (*)();
  auto get_api = reinterpret_cast<GetPjrtApi>(dlsym(library, "GetPjrtApi"));
  if (get_api == nullptr) {
    dlclose(library);
    throw Error("GetPjrtApi", PJRT_Error_Code_INVALID_ARGUMENT,
                "PJRT plugin: '" + path +
                    "' is a shared library but no PJRT plugin, it exports no function GetPjrtApi. "
                    "Pass the plugin's own library.");
  }
  const PJRT_Api* api = get_api();
  constexpr size_t kVersionEnd =
      offsetof(PJRT_Api, pjrt_api_version) + sizeof(PJRT_Api::pjrt_api_version);
  if (api == nullptr || api->struct_size < kVersionEnd) {
    throw Error("GetPjrtApi", PJRT_Error_Code_INTERNAL,
                "PJRT plugin: '" + path +
                    "' returned no usable PJRT_Api. Install another version of the plugin.");
  }
  if (api->pjrt_api_version.major_version != PJRT_API_MAJOR) {
    throw Error("GetPjrtApi", PJRT_Error_Code_UNIMPLEMENTED,
                "PJRT plugin: '" + path + "' speaks PJRT C API " +
                    std::to_string(api->pjrt_api_version.major_version) + "." +
                    std::to_string(api->pjrt_api_version.minor_version) +
                    ", expected major version " + std::to_string(PJRT_API_MAJOR) +
                    ". Install a plugin of that version.");
  }
  return api;
}

}  // namespace

std::shared_ptr<Plugin> Plugin::load(const std::string& library_path) {
  // Leaked: buffers may be released while the process exits.
  static auto* mutex = new util::Mutex;
  static auto* loaded = new std::map<std::string, std::shared_ptr<Plugin>>;

  std::string path = canonical_path(library_path);
  std::lock_guard lock(*mutex);
  std::shared_ptr<Plugin>& plugin = (*loaded)[path];
  if (plugin == nullptr) plugin.reset(new Plugin(path, open_library(path)));
  return plugin;
}

Plugin::Plugin(std::string path, const PJRT_Api* api) : path_(std::move(path)), api_(api) {
  // Before a method can be called, its errors must be readable.
  constexpr size_t kErrorsEnd =
      offsetof(PJRT_Api, PJRT_Error_GetCode) + sizeof(PJRT_Api::PJRT_Error_GetCode);
  if (api_->struct_size < kErrorsEnd) throw_missing("PJRT_Error_GetCode");

  PJRT_Plugin_Initialize_Args initialize{};
  call<&PJRT_Api::PJRT_Plugin_Initialize>(initialize);
  if (has<&PJRT_Api::PJRT_Plugin_Attributes>()) {
    PJRT_Plugin_Attributes_Args args{};
    call<&PJRT_Api::PJRT_Plugin_Attributes>(args);
    attributes_ = read_named_values(args.attributes, args.num_attributes);
  }
}

void Plugin::throw_missing(const char* method) const {
  throw Error(method, PJRT_Error_Code_UNIMPLEMENTED,
              "the plugin '" + path_ + "' (PJRT C API " + std::to_string(api_major()) + "." +
                  std::to_string(api_minor()) + ") does not have this method, expected API " +
                  std::to_string(PJRT_API_MAJOR) + "." + std::to_string(PJRT_API_MINOR) +
                  ". Install a newer plugin.");
}

namespace {

// Work that fails after its call has returned is INTERNAL to the CPU plugin, whatever the reason;
// what is out of memory must still be told apart.
PJRT_Error_Code restored_code(PJRT_Error_Code code, std::string_view text) {
  const bool out_of_memory = text.find("Out of memory allocating") != text.npos ||
                             text.find("RESOURCE_EXHAUSTED") != text.npos;
  return code == PJRT_Error_Code_INTERNAL && out_of_memory ? PJRT_Error_Code_RESOURCE_EXHAUSTED
                                                           : code;
}

}  // namespace

Error Plugin::take_error(PJRT_Error* error, const char* method) const {
  PJRT_Error_Message_Args message{};
  message.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE;
  message.error = error;
  api_->PJRT_Error_Message(&message);

  PJRT_Error_GetCode_Args code{};
  code.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE;
  code.error = error;
  code.code = PJRT_Error_Code_UNKNOWN;
  free_error(api_->PJRT_Error_GetCode(&code));

  const std::string_view text(message.message, message.message_size);
  Error result(method, restored_code(code.code, text), std::string(text));
  free_error(error);
  return result;
}

void Plugin::throw_error(PJRT_Error* error, const char* method) const {
  throw take_error(error, method);
}

void Plugin::free_error(PJRT_Error* error) const noexcept {
  if (error == nullptr) return;
  PJRT_Error_Destroy_Args args{};
  args.struct_size = PJRT_Error_Destroy_Args_STRUCT_SIZE;
  args.error = error;
  api_->PJRT_Error_Destroy(&args);
}

const PJRT_Extension_Base* Plugin::find_extension(PJRT_Extension_Type type) const {
  const PJRT_Extension_Base* extension = api_->extension_start;
  while (extension != nullptr && extension->type != type) extension = extension->next;
  return extension;
}

Options read_named_values(const PJRT_NamedValue* values, size_t count) {
  Options result;
  if (count == 0) return result;
  // A newer plugin's elements may be larger than this header's.
  size_t stride = (values->struct_size + alignof(PJRT_NamedValue) - 1) / alignof(PJRT_NamedValue) *
                  alignof(PJRT_NamedValue);
  if (stride < sizeof(PJRT_NamedValue)) stride = sizeof(PJRT_NamedValue);
  const char* position = reinterpret_cast<const char*>(values);
  for (size_t i = 0; i < count; ++i, position += stride) {
    const auto& value = *reinterpret_cast<const PJRT_NamedValue*>(position);
    OptionValue& out = result[std::string(value.name, value.name_size)];
    switch (value.type) {
      case PJRT_NamedValue_kString:
        out = std::string(value.string_value, value.value_size);
        break;
      case PJRT_NamedValue_kInt64:
        out = value.int64_value;
        break;
      case PJRT_NamedValue_kInt64List:
        out = std::vector<int64_t>(value.int64_array_value,
                                   value.int64_array_value + value.value_size);
        break;
      case PJRT_NamedValue_kFloat:
        out = value.float_value;
        break;
      case PJRT_NamedValue_kBool:
        out = value.bool_value;
        break;
      default:
        result.erase(std::string(value.name, value.name_size));  // a type of a newer API
    }
  }
  return result;
}

std::vector<PJRT_NamedValue> to_named_values(const Options& options) {
  std::vector<PJRT_NamedValue> result;
  result.reserve(options.size());
  for (const auto& [name, value] : options) {
    PJRT_NamedValue out{};
    out.struct_size = PJRT_NamedValue_STRUCT_SIZE;
    out.name = name.data();
    out.name_size = name.size();
    out.value_size = 1;
    if (auto* text = std::get_if<std::string>(&value)) {
      out.type = PJRT_NamedValue_kString;
      out.string_value = text->c_str();
      out.value_size = text->size();
    } else if (auto* integer = std::get_if<int64_t>(&value)) {
      out.type = PJRT_NamedValue_kInt64;
      out.int64_value = *integer;
    } else if (auto* real = std::get_if<float>(&value)) {
      out.type = PJRT_NamedValue_kFloat;
      out.float_value = *real;
    } else if (auto* truth = std::get_if<bool>(&value)) {
      out.type = PJRT_NamedValue_kBool;
      out.bool_value = *truth;
    } else {
      const auto& list = std::get<std::vector<int64_t>>(value);
      out.type = PJRT_NamedValue_kInt64List;
      out.int64_array_value = list.data();
      out.value_size = list.size();
    }
    result.push_back(out);
  }
  return result;
}

bool register_ffi_handler(const Plugin& plugin, std::string_view target_name, void* handler,
                          std::string_view platform) {
  auto* extension =
      reinterpret_cast<const FfiExtension*>(plugin.find_extension(PJRT_Extension_Type_FFI));
  if (extension == nullptr || extension->base.struct_size < kFfiExtensionSize ||
      extension->register_handler == nullptr) {
    return false;
  }
  FfiRegisterHandlerArgs args{};
  args.struct_size = kFfiRegisterHandlerArgsSize;
  args.target_name = target_name.data();
  args.target_name_size = target_name.size();
  args.handler = handler;
  args.platform_name = platform.data();
  args.platform_name_size = platform.size();
  if (PJRT_Error* error = extension->register_handler(&args)) {
    plugin.throw_error(error, "PJRT_FFI_Register_Handler");
  }
  return true;
}

}  // namespace torch_xla::pjrt
