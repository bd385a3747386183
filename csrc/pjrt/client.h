// A PJRT client: lists its devices, brings arrays to them and compiles programs for them. Every
// object keeps what it needs alive; all methods may be called from any thread. Failures throw
// pjrt::Error.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt/buffer.h"
#include "pjrt/compile_options.h"
#include "pjrt/executable.h"

namespace torch_xla::pjrt {

// One per process and plugin. After fork() the child may not use its parent's client: methods
// throw, destructors release nothing, and create() throws as well.
class Client : public std::enable_shared_from_this<Client> {
 public:
  static std::shared_ptr<Client> create(std::shared_ptr<Plugin> plugin,
                                        const Options& options = {});
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

  // Makes a buffer from host memory. `dims` empty is a scalar; `byte_strides` empty is dense
  // row-major. `on_done` (may be null) runs once when the plugin no longer needs the memory, on any
  // thread; it is dropped without running when the call throws.
  std::unique_ptr<Buffer> from_host(const void* data, DType dtype, std::span<const int64_t> dims,
                                    std::optional<std::span<const int64_t>> byte_strides,
                                    HostSemantics semantics, const Device& device,
                                    std::function<void()> on_done = nullptr) const;
  // Makes a buffer over dense row-major device memory that another library owns; `on_done` as
  // above.
  std::unique_ptr<Buffer> view_of_device_memory(void* data, DType dtype,
                                                std::span<const int64_t> dims, const Device& device,
                                                std::function<void()> on_done) const;

  // Compiles StableHLO, given as text or bytecode.
  std::unique_ptr<Executable> compile(std::string_view stablehlo,
                                      const CompileOptions& options = {}) const;
  // Loads what Executable::serialize() returned, by the same plugin on the same platform. `options`
  // replace those that it was compiled with, to move it to other devices; older plugins ignore
  // them.
  std::unique_ptr<Executable> deserialize(std::string_view serialized,
                                          const std::optional<CompileOptions>& options = {}) const;

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
  Client(std::shared_ptr<Plugin> plugin, PJRT_Client* client, unsigned generation);
  void read_properties();
  [[noreturn]] static void throw_forked(const char* method);
  // Puts the type of a new buffer into a block that keeps this client alive.
  std::shared_ptr<const ArrayType> own(ArrayType type) const;
  std::unique_ptr<Executable> adopt(PJRT_LoadedExecutable* loaded) const;

  std::shared_ptr<Plugin> plugin_;
  PJRT_Client* client_;
  unsigned fork_generation_;
  std::string platform_name_;
  std::string platform_version_;
  int process_index_ = 0;
  std::vector<std::unique_ptr<DeviceInfo>> device_infos_;
  std::vector<Device> devices_;
  std::vector<Device> addressable_devices_;

  friend class Array;
  friend class Executable;
};

}  // namespace torch_xla::pjrt
