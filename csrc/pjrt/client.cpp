#include "pjrt/client.h"

#include <atomic>
#include <exception>
#include <utility>

#include <pthread.h>

#include "pjrt/detail.h"

namespace torch_xla::pjrt {

namespace {

// Counts the forks that led to this process: a client made at another count belongs to an ancestor.
// Cheaper than asking for the process id on every call.
std::atomic<unsigned> fork_generation{0};

unsigned current_fork_generation() {
  static const int registered =
      pthread_atfork(nullptr, nullptr, [] { fork_generation.fetch_add(1); });
  if (registered != 0) {
    throw Error("pthread_atfork", PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory for a handler.");
  }
  return fork_generation.load(std::memory_order_relaxed);
}

// The generation of this library's first client, plus one; 0 before that. Plugins have threads of
// their own, which a child lacks: a client that a later generation created would hang.
std::atomic<unsigned> first_client_generation{0};

Error invalid(const char* method, const std::string& text) {
  return Error(method, PJRT_Error_Code_INVALID_ARGUMENT, text);
}

std::string options_text(const Options& options) {
  constexpr const char* kTypes[] = {"string", "bool", "integer", "float", "list of integers"};
  static_assert(std::size(kTypes) == std::variant_size_v<OptionValue>);
  std::string text;
  for (const auto& [name, value] : options) {
    text += (text.empty() ? "" : ", ") + name + " (" + kTypes[value.index()] + ")";
  }
  return text.empty() ? "(none)" : text;
}

}  // namespace

std::optional<MemoryStats> Device::memory_stats() const {
  info_->client->check_process("PJRT_Device_MemoryStats");
  const Plugin& plugin = info_->client->plugin();
  PJRT_Device_MemoryStats_Args args{};
  args.device = handle();
  if (!plugin.call_if_implemented<&PJRT_Api::PJRT_Device_MemoryStats>(args)) return std::nullopt;
  MemoryStats stats;
  stats.bytes_in_use = args.bytes_in_use;
#define COPY_IF_SET(NAME) \
  if (args.NAME##_is_set) stats.NAME = args.NAME;
  COPY_IF_SET(peak_bytes_in_use)
  COPY_IF_SET(num_allocs)
  COPY_IF_SET(largest_alloc_size)
  COPY_IF_SET(bytes_limit)
  COPY_IF_SET(bytes_reserved)
  COPY_IF_SET(peak_bytes_reserved)
  COPY_IF_SET(bytes_reservable_limit)
  COPY_IF_SET(largest_free_block_bytes)
  COPY_IF_SET(pool_bytes)
  COPY_IF_SET(peak_pool_bytes)
#undef COPY_IF_SET
  return stats;
}

std::shared_ptr<Client> Client::create(std::shared_ptr<Plugin> plugin, const Options& options,
                                       std::shared_ptr<KeyValueStore> store) {
  const unsigned generation = current_fork_generation();
  unsigned first = 0;
  if (!first_client_generation.compare_exchange_strong(first, generation + 1) &&
      first != generation + 1) {
    throw_forked("PJRT_Client_Create");
  }
  std::vector<PJRT_NamedValue> values = to_named_values(options);
  PJRT_Client_Create_Args args{};
  args.create_options = values.data();
  args.num_options = values.size();
  if (store != nullptr) set_store(args, *store);
  try {
    plugin->call<&PJRT_Api::PJRT_Client_Create>(args);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    // Plugins trust the types of their options: the CPU plugin lets std::bad_variant_access out.
    throw invalid("PJRT_Client_Create", std::string("the plugin failed with '") + error.what() +
                                            "' on the options " + options_text(options) +
                                            ". Check their names and types.");
  }
  std::shared_ptr<Client> client(
      new Client(std::move(plugin), std::move(store), args.client, generation));
  client->read_properties();
  return client;
}

Client::Client(std::shared_ptr<Plugin> plugin, std::shared_ptr<KeyValueStore> store,
               PJRT_Client* client, unsigned generation)
    : plugin_(std::move(plugin)),
      store_(std::move(store)),
      client_(client),
      fork_generation_(generation) {}

Client::~Client() {
  if (in_forked_child()) return;
  PJRT_Client_Destroy_Args args{};
  args.client = client_;
  plugin_->free_error(plugin_->try_call<&PJRT_Api::PJRT_Client_Destroy>(args));
}

bool Client::in_forked_child() const noexcept {
  return fork_generation.load(std::memory_order_relaxed) != fork_generation_;
}

void Client::throw_forked(const char* method) {
  throw Error(method, PJRT_Error_Code_FAILED_PRECONDITION,
              "this process was forked from one that had already created its PJRT client, whose "
              "threads and devices do not exist here. Start processes with the method 'spawn' or "
              "'forkserver', or touch the device in the children only.");
}

void Client::read_properties() {
  PJRT_Client_PlatformName_Args name{};
  name.client = client_;
  plugin_->call<&PJRT_Api::PJRT_Client_PlatformName>(name);
  platform_name_.assign(name.platform_name, name.platform_name_size);

  PJRT_Client_PlatformVersion_Args version{};
  version.client = client_;
  plugin_->call<&PJRT_Api::PJRT_Client_PlatformVersion>(version);
  platform_version_.assign(version.platform_version, version.platform_version_size);

  PJRT_Client_ProcessIndex_Args process{};
  process.client = client_;
  plugin_->call<&PJRT_Api::PJRT_Client_ProcessIndex>(process);
  process_index_ = process.process_index;

  PJRT_Client_Devices_Args devices{};
  devices.client = client_;
  plugin_->call<&PJRT_Api::PJRT_Client_Devices>(devices);
  for (size_t i = 0; i < devices.num_devices; ++i) {
    PJRT_Device_GetDescription_Args description{};
    description.device = devices.devices[i];
    plugin_->call<&PJRT_Api::PJRT_Device_GetDescription>(description);
    auto info = std::make_unique<DeviceInfo>();
    static_cast<DeviceDescription&>(*info) =
        read_description(*plugin_, description.device_description);
    info->client = this;
    info->handle = devices.devices[i];
    devices_.emplace_back(*info);
    device_infos_.push_back(std::move(info));
  }

  PJRT_Client_AddressableDevices_Args addressable{};
  addressable.client = client_;
  plugin_->call<&PJRT_Api::PJRT_Client_AddressableDevices>(addressable);
  for (size_t i = 0; i < addressable.num_addressable_devices; ++i) {
    for (auto& info : device_infos_) {
      if (info->handle != addressable.addressable_devices[i]) continue;
      info->addressable = true;
      if (plugin_->has<&PJRT_Api::PJRT_Device_LocalHardwareId>()) {
        PJRT_Device_LocalHardwareId_Args hardware{};
        hardware.device = info->handle;
        plugin_->call<&PJRT_Api::PJRT_Device_LocalHardwareId>(hardware);
        info->local_hardware_id = hardware.local_hardware_id;
      }
      addressable_devices_.emplace_back(*info);
    }
  }
}

Device Client::device_by_id(int id) const {
  for (const Device& device : devices_) {
    if (device.id() == id) return device;
  }
  throw invalid("PJRT_Client_LookupDevice",
                "expected the id of one of the " + std::to_string(devices_.size()) +
                    " devices of platform " + platform_name_ + ", got " + std::to_string(id) + ".");
}

Device Client::find_device(PJRT_Device* handle) const {
  for (const Device& device : devices_) {
    if (device.handle() == handle) return device;
  }
  throw invalid("PJRT_Client_Devices",
                "the plugin returned a device that its client does not list.");
}

}  // namespace torch_xla::pjrt
