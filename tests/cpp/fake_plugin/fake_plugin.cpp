// Odd PJRT plugins for the negotiation tests; FAKE_MODE chooses the oddity:
// 1 another major version
// 2 an API from before PJRT_Compile
// 3 no API at all
// 4 an initialization that fails
// 5 a newer API, whose named values are larger than this header's
// 6 topologies and compilation without hardware; the results tell what was asked
// 7 the real CPU plugin, cut down to the API of 2023
// 8 the real CPU plugin without Shardy
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include <dlfcn.h>
#include <pjrt_c_api.h>

namespace {

int live_objects = 0;

// What a handle of this plugin points to.
struct Object {
  Object() { ++live_objects; }
  ~Object() { --live_objects; }
  std::string name;
  std::string bytes;
};

template <typename Handle>
Object* object(Handle* handle) {
  return reinterpret_cast<Object*>(const_cast<std::remove_const_t<Handle>*>(handle));
}

char error_object;

void error_destroy(PJRT_Error_Destroy_Args*) {}

void error_message(PJRT_Error_Message_Args* args) {
  args->message = "no such hardware";
  args->message_size = std::strlen(args->message);
}

PJRT_Error* error_code(PJRT_Error_GetCode_Args* args) {
  args->code = PJRT_Error_Code_UNAVAILABLE;
  return nullptr;
}

PJRT_Error* initialize(PJRT_Plugin_Initialize_Args*) {
  return FAKE_MODE == 4 ? reinterpret_cast<PJRT_Error*>(&error_object) : nullptr;
}

PJRT_NamedValue named(const char* name, int64_t integer) {
  PJRT_NamedValue value{};
  value.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  value.name = name;
  value.name_size = std::strlen(name);
  value.type = PJRT_NamedValue_kInt64;
  value.int64_value = integer;
  value.value_size = 1;
  return value;
}

struct LargeNamedValue {
  PJRT_NamedValue value;
  int64_t added_later[3] = {-1, -1, -1};
};

[[maybe_unused]] PJRT_Error* large_attributes(PJRT_Plugin_Attributes_Args* args) {
  static LargeNamedValue values[3] = {{named("zero", 0)}, {named("one", 1)}, {named("two", 2)}};
  for (auto& large : values) large.value.struct_size = sizeof(LargeNamedValue);
  args->attributes = &values[0].value;
  args->num_attributes = 3;
  return nullptr;
}

PJRT_Error* count_attributes(PJRT_Plugin_Attributes_Args* args) {
  static PJRT_NamedValue value;
  value = named("live_objects", live_objects);
  args->attributes = &value;
  args->num_attributes = 1;
  return nullptr;
}

void add_topologies(PJRT_Api& api) {
  api.PJRT_Plugin_Attributes = count_attributes;
  api.PJRT_TopologyDescription_Create = [](PJRT_TopologyDescription_Create_Args* args) {
    auto* topology = new Object;
    topology->name = std::string(args->topology_name, args->topology_name_size);
    for (size_t i = 0; i < args->num_options; ++i) {
      const PJRT_NamedValue& option = args->create_options[i];
      topology->name += " " + std::string(option.name, option.name_size) + "=" +
                        std::to_string(option.int64_value);
    }
    args->topology = reinterpret_cast<PJRT_TopologyDescription*>(topology);
    return static_cast<PJRT_Error*>(nullptr);
  };
  api.PJRT_TopologyDescription_Destroy = [](PJRT_TopologyDescription_Destroy_Args* args) {
    delete object(args->topology);
    return static_cast<PJRT_Error*>(nullptr);
  };
  api.PJRT_TopologyDescription_PlatformName = [](PJRT_TopologyDescription_PlatformName_Args* args) {
    args->platform_name = object(args->topology)->name.data();
    args->platform_name_size = object(args->topology)->name.size();
    return static_cast<PJRT_Error*>(nullptr);
  };
  static int ids[4] = {0, 1, 2, 3};
  static PJRT_DeviceDescription* descriptions[4];
  for (int i = 0; i < 4; ++i) descriptions[i] = reinterpret_cast<PJRT_DeviceDescription*>(&ids[i]);
  api.PJRT_TopologyDescription_GetDeviceDescriptions =
      [](PJRT_TopologyDescription_GetDeviceDescriptions_Args* args) {
        args->descriptions = descriptions;
        args->num_descriptions = 4;
        return static_cast<PJRT_Error*>(nullptr);
      };
  api.PJRT_DeviceDescription_Id = [](PJRT_DeviceDescription_Id_Args* args) {
    args->id = *reinterpret_cast<int*>(args->device_description);
    return static_cast<PJRT_Error*>(nullptr);
  };
  api.PJRT_DeviceDescription_ProcessIndex = [](PJRT_DeviceDescription_ProcessIndex_Args* args) {
    args->process_index = 0;
    return static_cast<PJRT_Error*>(nullptr);
  };
  api.PJRT_DeviceDescription_Kind = [](PJRT_DeviceDescription_Kind_Args* args) {
    args->device_kind = "fake";
    args->device_kind_size = 4;
    return static_cast<PJRT_Error*>(nullptr);
  };
  api.PJRT_DeviceDescription_DebugString = [](PJRT_DeviceDescription_DebugString_Args* args) {
    args->debug_string = "fake";
    args->debug_string_size = 4;
    return static_cast<PJRT_Error*>(nullptr);
  };
  api.PJRT_DeviceDescription_Attributes = [](PJRT_DeviceDescription_Attributes_Args*) {
    return static_cast<PJRT_Error*>(nullptr);
  };
}

void add_compilation(PJRT_Api& api) {
  api.PJRT_Compile = [](PJRT_Compile_Args* args) {
    auto* executable = new Object;
    const PJRT_Program& program = *args->program;
    executable->name = std::string(program.format, program.format_size) + ": " +
                       std::string(program.code, program.code_size);
    executable->bytes = std::string(args->compile_options, args->compile_options_size);
    args->executable = reinterpret_cast<PJRT_Executable*>(executable);
    return static_cast<PJRT_Error*>(nullptr);
  };
  api.PJRT_Executable_Destroy = [](PJRT_Executable_Destroy_Args* args) {
    delete object(args->executable);
    return static_cast<PJRT_Error*>(nullptr);
  };
  api.PJRT_Executable_Name = [](PJRT_Executable_Name_Args* args) {
    args->executable_name = object(args->executable)->name.data();
    args->executable_name_size = object(args->executable)->name.size();
    return static_cast<PJRT_Error*>(nullptr);
  };
  api.PJRT_Executable_NumOutputs = [](PJRT_Executable_NumOutputs_Args* args) {
    args->num_outputs = 2;
    return static_cast<PJRT_Error*>(nullptr);
  };
  api.PJRT_Executable_Serialize = [](PJRT_Executable_Serialize_Args* args) {
    auto* copy = new Object(*object(args->executable));
    ++live_objects;  // not counted by the copy
    args->serialized_bytes = copy->bytes.data();
    args->serialized_bytes_size = copy->bytes.size();
    args->serialized_executable = reinterpret_cast<PJRT_SerializedExecutable*>(copy);
    args->serialized_executable_deleter = [](PJRT_SerializedExecutable* serialized) {
      delete object(serialized);
    };
    return static_cast<PJRT_Error*>(nullptr);
  };
  api.PJRT_Executable_GetCompiledMemoryStats =
      [](PJRT_Executable_GetCompiledMemoryStats_Args* args) {
        args->temp_size_in_bytes = 5;
        return static_cast<PJRT_Error*>(nullptr);
      };
}

const PJRT_Api* api_in(const char* path) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  return reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"))();
}

const PJRT_Api* real = nullptr;

// Programs that speak of Shardy are refused, in the words of the real plugin's parser.
PJRT_Error* compile_without_shardy(PJRT_Client_Compile_Args* args) {
  const std::string_view code(args->program->code, args->program->code_size);
  if (code.find("sdy.") == code.npos) return real->PJRT_Client_Compile(args);
  std::string refused = "module { \"no_sdy.mesh\"() : () -> () }";
  PJRT_Program program = *args->program;
  program.code = refused.data();
  program.code_size = refused.size();
  PJRT_Client_Compile_Args other = *args;
  other.program = &program;
  return real->PJRT_Client_Compile(&other);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static PJRT_Api api{};
  if (FAKE_MODE == 8) {
    if (real != nullptr) return &api;
    real = api_in(TORCH_XLA_TEST_PLUGIN);
    if (real == nullptr) return nullptr;
    std::memcpy(&api, real, std::min(sizeof(api), real->struct_size));
    api.PJRT_Client_Compile = compile_without_shardy;
    return &api;
  }
  if (FAKE_MODE == 3) return nullptr;
  if (FAKE_MODE == 7) {
    const char* path = std::getenv("PJRT_LIBRARY_PATH");
    const PJRT_Api* whole = api_in(path && *path ? path : TORCH_XLA_TEST_PLUGIN);
    if (whole == nullptr) return nullptr;
    api.struct_size = offsetof(PJRT_Api, PJRT_Executable_OutputElementTypes);
    api.extension_start = nullptr;
    std::memcpy(reinterpret_cast<char*>(&api) + offsetof(PJRT_Api, pjrt_api_version),
                reinterpret_cast<const char*>(whole) + offsetof(PJRT_Api, pjrt_api_version),
                api.struct_size - offsetof(PJRT_Api, pjrt_api_version));
    api.pjrt_api_version.minor_version = 28;
    return &api;
  }
  api.struct_size = PJRT_Api_STRUCT_SIZE;
  api.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  api.pjrt_api_version.major_version = PJRT_API_MAJOR;
  api.pjrt_api_version.minor_version = PJRT_API_MINOR;
  api.PJRT_Error_Destroy = error_destroy;
  api.PJRT_Error_Message = error_message;
  api.PJRT_Error_GetCode = error_code;
  api.PJRT_Plugin_Initialize = initialize;
  if (FAKE_MODE == 1) api.pjrt_api_version.major_version = PJRT_API_MAJOR + 1;
  if (FAKE_MODE == 2) {
    // What lies behind an old plugin's struct is not to be read: here it is a trap.
    api.pjrt_api_version.minor_version = 7;
    api.struct_size = offsetof(PJRT_Api, PJRT_Compile);
    api.PJRT_Compile = [](PJRT_Compile_Args*) -> PJRT_Error* { std::abort(); };
  }
  if (FAKE_MODE == 5) {
    api.struct_size = sizeof(PJRT_Api) + 16 * sizeof(void*);
    api.pjrt_api_version.minor_version = PJRT_API_MINOR + 100;
    api.PJRT_Plugin_Attributes = large_attributes;
  }
  if (FAKE_MODE == 6) {
    add_topologies(api);
    add_compilation(api);
  }
  return &api;
}
