// The CPU plugin as a plugin whose client spans the processes of a job. Each process makes a real
// client with the devices of all, shows all, and addresses those of its own.
//
// A program over devices of several processes is run by each of them on all devices: they send each
// other their arguments through the key-value store, and each keeps what its own devices give. So
// values come right only where every process launches the same programs in the same order. Those
// that differ are refused.
//
// Options of the client: node_id, num_nodes, cpu_device_count (of this process).
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wrapped_plugin.h"

namespace {

constexpr int kTimeLimit = 60'000;  // milliseconds that one process waits for another

std::mutex mutex;

PJRT_Error* refusal(const std::string& text) {
  return error_of({PJRT_Error_Code_INVALID_ARGUMENT, "pod plugin: " + text});
}

// --- the store --------------------------------------------------------------------------------

PJRT_Client_Create_Args store;  // its callbacks and their arguments

PJRT_Error* new_error(PJRT_Error_Code code, const char* text, size_t size) {
  return error_of({code, std::string(text, size)});
}
PJRT_CallbackError callback_error = new_error;

template <typename Args>
Args store_args(size_t size, const std::string& key, void* user_arg) {
  Args args{};
  args.struct_size = size;
  args.key = key.data();
  args.key_size = key.size();
  args.callback_error = &callback_error;
  args.user_arg = user_arg;
  return args;
}

PJRT_Error* put(const std::string& key, const std::string& value) {
  auto args = store_args<PJRT_KeyValuePutCallback_Args>(PJRT_KeyValuePutCallback_Args_STRUCT_SIZE,
                                                        key, store.kv_put_user_arg);
  args.value = value.data();
  args.value_size = value.size();
  return store.kv_put_callback(&args);
}

template <typename Args>
std::string take_value(const Args& args) {
  std::string value(args.value, args.value_size);
  args.value_deleter_callback(args.value);
  return value;
}

PJRT_Error* get(const std::string& key, std::string& value) {
  auto args = store_args<PJRT_KeyValueGetCallback_Args>(PJRT_KeyValueGetCallback_Args_STRUCT_SIZE,
                                                        key, store.kv_get_user_arg);
  args.timeout_in_ms = kTimeLimit;
  if (PJRT_Error* error = store.kv_get_callback(&args)) return error;
  value = take_value(args);
  return nullptr;
}

// Empty where nobody has put it.
std::string try_get(const std::string& key) {
  auto args = store_args<PJRT_KeyValueTryGetCallback_Args>(
      PJRT_KeyValueTryGetCallback_Args_STRUCT_SIZE, key, store.kv_try_get_user_arg);
  if (PJRT_Error* error = store.kv_try_get_callback(&args)) {
    PJRT_Error_Destroy_Args destroy{PJRT_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    destroy_error(&destroy);
    return "";
  }
  return take_value(args);
}

// --- devices ----------------------------------------------------------------------------------

int this_process = 0;
std::vector<PJRT_Device*> all, mine;                     // of the client
std::map<const PJRT_Device*, int> process_of;            // of devices
std::map<const PJRT_DeviceDescription*, int> described;  // as process_of
std::map<const PJRT_Device*, int> positions;             // in `all`

bool is_mine(const PJRT_Device* device) { return process_of.at(device) == this_process; }

std::optional<int64_t> integer_option(const PJRT_Client_Create_Args* args, std::string_view name) {
  for (size_t i = 0; i < args->num_options; ++i) {
    const PJRT_NamedValue& option = args->create_options[i];
    if (std::string_view(option.name, option.name_size) == name) return option.int64_value;
  }
  return std::nullopt;
}

// The number of devices of each process, of which each tells the others.
PJRT_Error* count_devices(int64_t processes, int64_t own, std::vector<int64_t>& counts) {
  if (PJRT_Error* error = put("devices/" + std::to_string(this_process), std::to_string(own))) {
    return error;
  }
  for (int64_t process = 0; process < processes; ++process) {
    std::string count;
    if (PJRT_Error* error = get("devices/" + std::to_string(process), count)) return error;
    counts.push_back(std::stoll(count));
  }
  return nullptr;
}

PJRT_Error* create_client(PJRT_Client_Create_Args* args) {
  const auto node = integer_option(args, "node_id"), nodes = integer_option(args, "num_nodes");
  if (!node || !nodes || args->kv_get_callback == nullptr || args->kv_put_callback == nullptr ||
      args->kv_try_get_callback == nullptr) {
    return refusal("expected a key-value store and the options node_id and num_nodes");
  }
  this_process = static_cast<int>(*node);
  store = *args;
  std::vector<int64_t> counts;
  const int64_t own = integer_option(args, "cpu_device_count").value_or(1);
  if (PJRT_Error* error = count_devices(*nodes, own, counts)) return error;
  PJRT_NamedValue total{};
  total.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  total.name = "cpu_device_count";
  total.name_size = std::strlen(total.name);
  total.type = PJRT_NamedValue_kInt64;
  for (const int64_t count : counts) total.int64_value += count;
  total.value_size = 1;
  PJRT_Client_Create_Args create{};
  create.create_options = &total;
  create.num_options = 1;
  if (PJRT_Error* error = call_real<&PJRT_Api::PJRT_Client_Create>(create)) return error;
  args->client = create.client;
  PJRT_Client_Devices_Args devices{};
  devices.client = args->client;
  if (PJRT_Error* error = call_real<&PJRT_Api::PJRT_Client_Devices>(devices)) return error;
  size_t next = 0;
  for (int process = 0; process < *nodes; ++process) {
    for (int64_t i = 0; i < counts[static_cast<size_t>(process)]; ++i, ++next) {
      PJRT_Device* device = devices.devices[next];
      positions[device] = static_cast<int>(all.size());
      all.push_back(device);
      if (process == this_process) mine.push_back(device);
      PJRT_Device_GetDescription_Args description{};
      description.device = device;
      if (PJRT_Error* error = call_real<&PJRT_Api::PJRT_Device_GetDescription>(description)) {
        return error;
      }
      process_of[device] = described[description.device_description] = process;
    }
  }
  return nullptr;
}

PJRT_Error* process_index(PJRT_Client_ProcessIndex_Args* args) {
  args->process_index = this_process;
  return nullptr;
}

PJRT_Error* device_process_index(PJRT_DeviceDescription_ProcessIndex_Args* args) {
  args->process_index = described.at(args->device_description);
  return nullptr;
}

PJRT_Error* addressable_devices(PJRT_Client_AddressableDevices_Args* args) {
  args->addressable_devices = mine.data();
  args->num_addressable_devices = mine.size();
  return nullptr;
}

PJRT_Error* is_addressable(PJRT_Device_IsAddressable_Args* args) {
  args->is_addressable = is_mine(args->device);
  return nullptr;
}

PJRT_Error* memory_stats(PJRT_Device_MemoryStats_Args* args) {
  if (!is_mine(args->device)) return refusal("expected the memory of a device of this process");
  return real->PJRT_Device_MemoryStats(args);
}

PJRT_Error* upload(PJRT_Client_BufferFromHostBuffer_Args* args) {
  if (args->device != nullptr && !is_mine(args->device)) {
    return refusal("expected an upload to a device of this process");
  }
  return real->PJRT_Client_BufferFromHostBuffer(args);
}

PJRT_Error* copy_to_device(PJRT_Buffer_CopyToDevice_Args* args) {
  if (!is_mine(args->dst_device)) return refusal("expected a copy to a device of this process");
  return real->PJRT_Buffer_CopyToDevice(args);
}

// --- values on their way ----------------------------------------------------------------------

void drop(PJRT_Buffer* buffer) {
  PJRT_Buffer_Destroy_Args args{};
  args.buffer = buffer;
  call_real<&PJRT_Api::PJRT_Buffer_Destroy>(args);
}

void drop(PJRT_Event* event) {
  if (event == nullptr) return;
  PJRT_Event_Destroy_Args args{};
  args.event = event;
  call_real<&PJRT_Api::PJRT_Event_Destroy>(args);
}

PJRT_Error* await(PJRT_Event* event) {
  PJRT_Event_Await_Args args{};
  args.event = event;
  PJRT_Error* error = call_real<&PJRT_Api::PJRT_Event_Await>(args);
  drop(event);
  return error;
}

// A message of numbers and texts, one after the other.
class Writer {
 public:
  void number(int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void text(std::string_view value) {
    number(static_cast<int64_t>(value.size()));
    bytes_ += value;
  }
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  int64_t number() {
    int64_t value = 0;
    std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ += sizeof value;
    return value;
  }
  std::string_view text() {
    const auto size = static_cast<size_t>(number());
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
};

PJRT_Error* write(Writer& message, PJRT_Buffer* buffer) {
  PJRT_Buffer_ElementType_Args type{};
  type.buffer = buffer;
  if (PJRT_Error* error = call_real<&PJRT_Api::PJRT_Buffer_ElementType>(type)) return error;
  PJRT_Buffer_Dimensions_Args shape{};
  shape.buffer = buffer;
  if (PJRT_Error* error = call_real<&PJRT_Api::PJRT_Buffer_Dimensions>(shape)) return error;
  std::vector<int64_t> minor_to_major(shape.num_dims);
  for (size_t i = 0; i < shape.num_dims; ++i) {
    minor_to_major[i] = static_cast<int64_t>(shape.num_dims - 1 - i);
  }
  PJRT_Buffer_MemoryLayout layout{};
  layout.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE;
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  layout.tiled.minor_to_major = minor_to_major.data();
  layout.tiled.minor_to_major_size = shape.num_dims;
  PJRT_Buffer_ToHostBuffer_Args read{};
  read.src = buffer;
  if (shape.num_dims > 1) read.host_layout = &layout;
  if (PJRT_Error* error = call_real<&PJRT_Api::PJRT_Buffer_ToHostBuffer>(read)) return error;
  std::string value(read.dst_size, '\0');  // asked without a destination, it tells the size
  read.dst = value.data();
  if (PJRT_Error* error = call_real<&PJRT_Api::PJRT_Buffer_ToHostBuffer>(read)) return error;
  if (PJRT_Error* error = await(read.event)) return error;
  message.number(type.type);
  message.number(static_cast<int64_t>(shape.num_dims));
  for (size_t i = 0; i < shape.num_dims; ++i) message.number(shape.dims[i]);
  message.text(value);
  return nullptr;
}

PJRT_Error* read(Reader& message, PJRT_Client* client, PJRT_Device* device, PJRT_Buffer*& buffer) {
  PJRT_Client_BufferFromHostBuffer_Args args{};
  args.client = client;
  args.type = static_cast<PJRT_Buffer_Type>(message.number());
  std::vector<int64_t> dims(static_cast<size_t>(message.number()));
  for (int64_t& dim : dims) dim = message.number();
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.data = message.text().data();
  args.host_buffer_semantics = PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
  args.device = device;
  if (PJRT_Error* error = call_real<&PJRT_Api::PJRT_Client_BufferFromHostBuffer>(args)) {
    return error;
  }
  buffer = args.buffer;
  return await(args.done_with_host_buffer);
}

// --- programs ---------------------------------------------------------------------------------

PJRT_Client* client = nullptr;  // of the last compilation: there is one
// By executables: what tells equal programs from others, in all processes.
std::map<const PJRT_LoadedExecutable*, std::string> loaded_names;
std::map<const PJRT_Executable*, std::string> names;
std::map<const PJRT_LoadedExecutable*, std::vector<PJRT_Device*>> own_devices;
std::map<std::string, int64_t> runs;  // by devices

constexpr size_t kNameSize = 16;

std::string name_of(std::string_view text) {
  std::string name = std::to_string(std::hash<std::string_view>()(text));
  name.resize(kNameSize, '-');
  return name;
}

PJRT_Error* compile(PJRT_Client_Compile_Args* args) {
  if (PJRT_Error* error = real->PJRT_Client_Compile(args)) return error;
  const std::string text(args->program->code, args->program->code_size);
  const std::string name =
      name_of(text + std::string(args->compile_options, args->compile_options_size));
  {
    const std::lock_guard lock(mutex);
    client = args->client;
    loaded_names[args->executable] = name;
  }
  return put("text/" + name, text);
}

PJRT_Error* get_executable(PJRT_LoadedExecutable_GetExecutable_Args* args) {
  PJRT_Error* error = real->PJRT_LoadedExecutable_GetExecutable(args);
  const std::lock_guard lock(mutex);
  names[args->executable] = loaded_names[args->loaded_executable];
  return error;
}

PJRT_Error* destroy_executable(PJRT_Executable_Destroy_Args* args) {
  {
    const std::lock_guard lock(mutex);
    names.erase(args->executable);
  }
  return real->PJRT_Executable_Destroy(args);
}

// The name and what the real plugin gives.
PJRT_Error* serialize(PJRT_Executable_Serialize_Args* args) {
  if (PJRT_Error* error = real->PJRT_Executable_Serialize(args)) return error;
  auto* bytes = new std::string;
  {
    const std::lock_guard lock(mutex);
    *bytes = names[args->executable];
  }
  bytes->append(args->serialized_bytes, args->serialized_bytes_size);
  args->serialized_executable_deleter(args->serialized_executable);
  args->serialized_bytes = bytes->data();
  args->serialized_bytes_size = bytes->size();
  args->serialized_executable = reinterpret_cast<PJRT_SerializedExecutable*>(bytes);
  args->serialized_executable_deleter = [](PJRT_SerializedExecutable* given) {
    delete reinterpret_cast<std::string*>(given);
  };
  return nullptr;
}

PJRT_Error* deserialize(PJRT_Executable_DeserializeAndLoad_Args* args) {
  if (args->serialized_executable_size < kNameSize) return refusal("expected an executable");
  PJRT_Executable_DeserializeAndLoad_Args rest = *args;
  rest.serialized_executable += kNameSize;
  rest.serialized_executable_size -= kNameSize;
  if (PJRT_Error* error = real->PJRT_Executable_DeserializeAndLoad(&rest)) return error;
  args->loaded_executable = rest.loaded_executable;
  const std::lock_guard lock(mutex);
  client = args->client;
  loaded_names[args->loaded_executable] = std::string(args->serialized_executable, kNameSize);
  return nullptr;
}

PJRT_Error* destroy_program(PJRT_LoadedExecutable_Destroy_Args* args) {
  {
    const std::lock_guard lock(mutex);
    own_devices.erase(args->executable);
    loaded_names.erase(args->executable);
  }
  return real->PJRT_LoadedExecutable_Destroy(args);
}

std::vector<PJRT_Device*> devices_of(PJRT_LoadedExecutable* program) {
  PJRT_LoadedExecutable_AddressableDevices_Args args{};
  args.executable = program;
  call_real<&PJRT_Api::PJRT_LoadedExecutable_AddressableDevices>(args);
  return {args.addressable_devices, args.addressable_devices + args.num_addressable_devices};
}

PJRT_Error* devices_of_program(PJRT_LoadedExecutable_AddressableDevices_Args* args) {
  std::vector<PJRT_Device*> devices = devices_of(args->executable);
  std::erase_if(devices, [](const PJRT_Device* device) { return !is_mine(device); });
  const std::lock_guard lock(mutex);
  const std::vector<PJRT_Device*>& kept = own_devices[args->executable] = std::move(devices);
  args->addressable_devices = kept.data();
  args->num_addressable_devices = kept.size();
  return nullptr;
}

// The first line in which two programs differ.
std::string difference(const std::string& mine, const std::string& theirs) {
  const std::string ours = try_get("text/" + mine), others = try_get("text/" + theirs);
  const auto begin = std::ranges::mismatch(ours, others).in1 - ours.begin();
  const size_t line = ours.rfind('\n', static_cast<size_t>(begin)) + 1;
  const auto line_of = [&](const std::string& text) {
    return "'" + text.substr(line, std::min(text.find('\n', line), line + 200) - line) + "'";
  };
  if (ours.empty() || others.empty() || line >= others.size()) return "another one";
  return line_of(others) + " in place of " + line_of(ours);
}

// A run over devices of several processes.
class Run {
 public:
  Run(PJRT_LoadedExecutable_Execute_Args* args, std::vector<PJRT_Device*> devices)
      : args_(args), devices_(std::move(devices)), given_(devices_.size()), made_(devices_.size()) {
    std::string who;
    for (const PJRT_Device* device : devices_) who += std::to_string(positions.at(device)) + ",";
    const std::lock_guard lock(mutex);
    number_ = runs[who]++;
    key_ = "run/" + who + "/" + std::to_string(number_) + "/";
    name_ = loaded_names[args_->executable];
  }
  ~Run() {
    std::ranges::for_each(copies_, [](PJRT_Buffer* buffer) { drop(buffer); });
  }

  PJRT_Error* execute() {
    const auto own = static_cast<size_t>(std::ranges::count_if(devices_, is_mine));
    if (args_->num_devices != own) {
      return refusal("expected arguments for " + std::to_string(own) + " devices, got " +
                     std::to_string(args_->num_devices));
    }
    if (PJRT_Error* error = send()) return error;
    std::set<int> others;
    for (const PJRT_Device* device : devices_) {
      if (!is_mine(device)) others.insert(process_of.at(device));
    }
    for (const int process : others) {
      if (PJRT_Error* error = receive(process)) return error;
    }
    return launch();
  }

 private:
  PJRT_Error* send() {
    Writer message;
    message.text(name_);
    size_t next = 0;  // of our devices
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (!is_mine(devices_[d])) continue;
      PJRT_Buffer* const* arguments = args_->argument_lists[next++];
      given_[d].assign(arguments, arguments + args_->num_args);
      for (PJRT_Buffer* buffer : given_[d]) {
        if (PJRT_Error* error = write(message, buffer)) return error;
      }
    }
    return put(key_ + std::to_string(this_process), message.bytes());
  }

  PJRT_Error* receive(int process) {
    std::string bytes;
    if (PJRT_Error* error = get(key_ + std::to_string(process), bytes)) return error;
    Reader message(bytes);
    if (const std::string theirs(message.text()); theirs != name_) {
      return refusal("expected the same program of all processes as run " +
                     std::to_string(number_) + ", got from process " + std::to_string(process) +
                     " " + difference(name_, theirs));
    }
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (process_of.at(devices_[d]) != process) continue;
      for (size_t i = 0; i < args_->num_args; ++i) {
        PJRT_Buffer* buffer = nullptr;
        if (PJRT_Error* error = read(message, client, devices_[d], buffer)) return error;
        copies_.push_back(buffer);
        given_[d].push_back(buffer);
      }
    }
    return nullptr;
  }

  PJRT_Error* launch() {
    const size_t outputs = num_outputs(args_->executable);
    std::vector<PJRT_Buffer* const*> argument_lists;
    std::vector<PJRT_Buffer**> output_lists;
    for (size_t d = 0; d < devices_.size(); ++d) {
      made_[d].resize(outputs);
      argument_lists.push_back(given_[d].data());
      output_lists.push_back(made_[d].data());
    }
    std::vector<PJRT_Event*> done(devices_.size());
    PJRT_LoadedExecutable_Execute_Args whole = *args_;
    whole.num_devices = devices_.size();
    whole.argument_lists = argument_lists.data();
    whole.output_lists = output_lists.data();
    whole.device_complete_events = done.data();
    if (PJRT_Error* error = real->PJRT_LoadedExecutable_Execute(&whole)) return error;
    size_t next = 0;  // of our devices
    for (size_t d = 0; d < devices_.size(); ++d) {
      if (!is_mine(devices_[d])) {
        std::ranges::for_each(made_[d], [](PJRT_Buffer* buffer) { drop(buffer); });
        drop(done[d]);
        continue;
      }
      std::ranges::copy(made_[d], args_->output_lists[next]);
      if (args_->device_complete_events != nullptr) {
        args_->device_complete_events[next] = done[d];
      } else {
        drop(done[d]);
      }
      ++next;
    }
    return nullptr;
  }

  PJRT_LoadedExecutable_Execute_Args* const args_;
  const std::vector<PJRT_Device*> devices_;
  std::vector<std::vector<PJRT_Buffer*>> given_, made_;  // by devices
  std::vector<PJRT_Buffer*> copies_;                     // of what others have given
  int64_t number_ = 0;
  std::string key_, name_;
};

PJRT_Error* execute(PJRT_LoadedExecutable_Execute_Args* args) {
  std::vector<PJRT_Device*> devices = devices_of(args->executable);
  if (std::ranges::all_of(devices, is_mine)) return real->PJRT_LoadedExecutable_Execute(args);
  if (std::ranges::none_of(devices, is_mine)) return refusal("expected a device of this process");
  return Run(args, std::move(devices)).execute();
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static PJRT_Api* const api = wrap_cpu_plugin();
  if (api == nullptr) return nullptr;
  api->PJRT_Client_Create = create_client;
  api->PJRT_Client_ProcessIndex = process_index;
  api->PJRT_Client_AddressableDevices = addressable_devices;
  api->PJRT_DeviceDescription_ProcessIndex = device_process_index;
  api->PJRT_Device_IsAddressable = is_addressable;
  api->PJRT_Device_MemoryStats = memory_stats;
  api->PJRT_Client_BufferFromHostBuffer = upload;
  api->PJRT_Buffer_CopyToDevice = copy_to_device;
  api->PJRT_Client_Compile = compile;
  api->PJRT_Executable_Serialize = serialize;
  api->PJRT_Executable_DeserializeAndLoad = deserialize;
  api->PJRT_Executable_Destroy = destroy_executable;
  api->PJRT_LoadedExecutable_GetExecutable = get_executable;
  api->PJRT_LoadedExecutable_AddressableDevices = devices_of_program;
  api->PJRT_LoadedExecutable_Destroy = destroy_program;
  api->PJRT_LoadedExecutable_Execute = execute;
  return api;
}
