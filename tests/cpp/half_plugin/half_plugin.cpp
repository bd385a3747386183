// The CPU plugin as one of two processes of a job sees it: of its devices, which there are an even
// number of, this process addresses one half. HALF_PLUGIN_PROCESS says which: 0 (the first), or 1.
//
// The other process, which is played here, does the same on the same data: a run over devices of
// both takes the arguments of each device that is not ours from its counterpart in our half, and
// what it gives to those devices is dropped.
#include <cstdlib>
#include <map>
#include <vector>

#include "wrapped_plugin.h"

namespace {

std::mutex mutex;
std::vector<PJRT_Device*> all, mine;                                   // of the client
std::map<PJRT_DeviceDescription*, int> process_of;                     // of devices
std::map<PJRT_LoadedExecutable*, std::vector<PJRT_Device*>> programs;  // their devices in `mine`

int this_process() {
  const char* given = std::getenv("HALF_PLUGIN_PROCESS");
  return given != nullptr && std::string(given) == "1" ? 1 : 0;
}

bool is_mine(const PJRT_Device* device) { return std::ranges::count(mine, device) > 0; }

// The device at the same place in our half.
PJRT_Device* counterpart(const PJRT_Device* device) {
  return mine[static_cast<size_t>(std::ranges::find(all, device) - all.begin()) % mine.size()];
}

PJRT_Error* refusal(const std::string& text) {
  return error_of({PJRT_Error_Code_INVALID_ARGUMENT, "half plugin: " + text});
}

// --- devices ----------------------------------------------------------------------------------

PJRT_Error* client_create(PJRT_Client_Create_Args* args) {
  if (PJRT_Error* error = real->PJRT_Client_Create(args)) return error;
  PJRT_Client_Devices_Args devices{};
  devices.client = args->client;
  if (PJRT_Error* error = call_real<&PJRT_Api::PJRT_Client_Devices>(devices)) return error;
  const std::lock_guard lock(mutex);
  const size_t half = devices.num_devices / 2;
  all.clear();
  mine.clear();
  for (size_t i = 0; i < devices.num_devices; ++i) {
    PJRT_Device* device = devices.devices[i];
    const int process = i < half ? 0 : 1;
    all.push_back(device);
    if (process == this_process()) mine.push_back(device);
    PJRT_Device_GetDescription_Args description{};
    description.device = device;
    if (PJRT_Error* error = call_real<&PJRT_Api::PJRT_Device_GetDescription>(description))
      return error;
    process_of[description.device_description] = process;
  }
  return nullptr;
}

PJRT_Error* process_index(PJRT_Client_ProcessIndex_Args* args) {
  args->process_index = this_process();
  return nullptr;
}

PJRT_Error* device_process_index(PJRT_DeviceDescription_ProcessIndex_Args* args) {
  const std::lock_guard lock(mutex);
  args->process_index = process_of.at(args->device_description);
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

// --- programs ---------------------------------------------------------------------------------

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
  const std::vector<PJRT_Device*>& kept = programs[args->executable] = std::move(devices);
  args->addressable_devices = kept.data();
  args->num_addressable_devices = kept.size();
  return nullptr;
}

PJRT_Error* destroy_program(PJRT_LoadedExecutable_Destroy_Args* args) {
  {
    const std::lock_guard lock(mutex);
    programs.erase(args->executable);
  }
  return real->PJRT_LoadedExecutable_Destroy(args);
}

void drop(PJRT_Buffer* buffer) {
  PJRT_Buffer_Destroy_Args args{};
  args.buffer = buffer;
  call_real<&PJRT_Api::PJRT_Buffer_Destroy>(args);
}

PJRT_Error* execute(PJRT_LoadedExecutable_Execute_Args* args) {
  const std::vector<PJRT_Device*> devices = devices_of(args->executable);
  if (std::ranges::all_of(devices, is_mine)) return real->PJRT_LoadedExecutable_Execute(args);
  std::vector<PJRT_Device*> ours;
  std::ranges::copy_if(devices, std::back_inserter(ours), is_mine);
  if (args->num_devices != ours.size()) {
    return refusal("expected arguments for " + std::to_string(ours.size()) + " devices, got " +
                   std::to_string(args->num_devices));
  }
  const size_t outputs = num_outputs(args->executable);
  std::vector<std::vector<PJRT_Buffer*>> given(devices.size()), made(devices.size());
  std::vector<PJRT_Buffer*> copies;
  PJRT_Error* error = nullptr;
  for (size_t d = 0; d < devices.size(); ++d) {
    const auto from = std::ranges::find(ours, counterpart(devices[d])) - ours.begin();
    for (size_t i = 0; i < args->num_args && error == nullptr; ++i) {
      PJRT_Buffer* buffer = args->argument_lists[from][i];
      if (!is_mine(devices[d])) {
        PJRT_Buffer_CopyToDevice_Args copy{};
        copy.buffer = buffer;
        copy.dst_device = devices[d];
        error = call_real<&PJRT_Api::PJRT_Buffer_CopyToDevice>(copy);
        buffer = copy.dst_buffer;
        if (error == nullptr) copies.push_back(buffer);
      }
      given[d].push_back(buffer);
    }
    made[d].resize(outputs);
  }
  std::vector<PJRT_Buffer* const*> argument_lists;
  std::vector<PJRT_Buffer**> output_lists;
  for (size_t d = 0; d < devices.size(); ++d) {
    argument_lists.push_back(given[d].data());
    output_lists.push_back(made[d].data());
  }
  std::vector<PJRT_Event*> done(devices.size());
  PJRT_LoadedExecutable_Execute_Args whole = *args;
  whole.num_devices = devices.size();
  whole.argument_lists = argument_lists.data();
  whole.output_lists = output_lists.data();
  whole.device_complete_events = done.data();
  if (error == nullptr) error = call_real<&PJRT_Api::PJRT_LoadedExecutable_Execute>(whole);
  std::ranges::for_each(copies, drop);
  if (error != nullptr) return error;
  size_t next = 0;  // of our devices
  for (size_t d = 0; d < devices.size(); ++d) {
    const bool is_ours = is_mine(devices[d]);
    if (is_ours) std::ranges::copy(made[d], args->output_lists[next]);
    if (is_ours && args->device_complete_events != nullptr) {
      args->device_complete_events[next] = done[d];
    } else {
      PJRT_Event_Destroy_Args destroy{};
      destroy.event = done[d];
      call_real<&PJRT_Api::PJRT_Event_Destroy>(destroy);
    }
    if (is_ours) {
      ++next;
    } else {
      std::ranges::for_each(made[d], drop);
    }
  }
  return nullptr;
}

}  // namespace

extern "C" __attribute__((visibility("default"))) const PJRT_Api* GetPjrtApi() {
  static PJRT_Api* const api = wrap_cpu_plugin();
  if (api == nullptr) return nullptr;
  api->PJRT_Client_Create = client_create;
  api->PJRT_Client_ProcessIndex = process_index;
  api->PJRT_Client_AddressableDevices = addressable_devices;
  api->PJRT_DeviceDescription_ProcessIndex = device_process_index;
  api->PJRT_Device_IsAddressable = is_addressable;
  api->PJRT_Device_MemoryStats = memory_stats;
  api->PJRT_Client_BufferFromHostBuffer = upload;
  api->PJRT_Buffer_CopyToDevice = copy_to_device;
  api->PJRT_LoadedExecutable_AddressableDevices = devices_of_program;
  api->PJRT_LoadedExecutable_Destroy = destroy_program;
  api->PJRT_LoadedExecutable_Execute = execute;
  return api;
}
