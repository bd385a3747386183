// A PJRT client: the process's connection to a plugin and its devices. Buffers, events and
// executables are made for a client and keep it alive; all methods may be called from any thread.
// Failures throw pjrt::Error.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "pjrt/device.h"
#include "pjrt/key_value_store.h"
#include "pjrt/plugin.h"

namespace torch_xla::pjrt {

// One per process and plugin. After fork() the child may not use its parent's client: methods
// throw, destructors release nothing, and create() throws as well.
class Client : public std::enable_shared_from_this<Client> {
 public:
  // With a store the plugin may wait for the other processes of the job.
  static std::shared_ptr<Client> create(std::shared_ptr<Plugin> plugin, const Options& options = {},
                                        std::shared_ptr<KeyValueStore> store = nullptr);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::string& platform_name() const { return platform_name_; }
  const std::string& platform_version() const { return platform_version_; }
  int process_index() const { return process_index_; }
  const std::vector<Device>& devices() const { return devices_; }
  const std::vector<Device>& addressable_devices() const { return addressable_devices_; }
  // Throws INVALID_ARGUMENT when there is no such device.
  Device device_by_id(int id) const;

  const Plugin& plugin() const { return *plugin_; }
  const std::shared_ptr<Plugin>& shared_plugin() const { return plugin_; }
  PJRT_Client* handle() const { return client_; }
  // Returns the device with this handle.
  Device find_device(PJRT_Device* handle) const;
  // Throws in a child that fork() made after the client was created.
  void check_process(const char* method) const {
    if (in_forked_child()) [[unlikely]]
      throw_forked(method);
  }
  bool in_forked_child() const noexcept;

 private:
  Client(std::shared_ptr<Plugin> plugin, std::shared_ptr<KeyValueStore> store, PJRT_Client* client,
         unsigned generation);
  void read_properties();
  [[noreturn]] static void throw_forked(const char* method);

  std::shared_ptr<Plugin> plugin_;
  std::shared_ptr<KeyValueStore> store_;  // null: of one process
  PJRT_Client* client_;
  unsigned fork_generation_;
  std::string platform_name_;
  std::string platform_version_;
  int process_index_ = 0;
  std::vector<std::unique_ptr<DeviceInfo>> device_infos_;
  std::vector<Device> devices_;
  std::vector<Device> addressable_devices_;
};

}  // namespace torch_xla::pjrt
