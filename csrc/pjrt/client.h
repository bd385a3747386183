// A PJRT client and what belongs to it: devices, buffers, events and loaded executables.
// Every object keeps what it needs alive; all methods may be called from any thread. Failures throw
// pjrt::Error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt/compile_options.h"
#include "pjrt/plugin.h"

namespace torch_xla::pjrt {

using DType = PJRT_Buffer_Type;

// Bytes of one element in host memory (4-bit types take a whole byte there); 0 for tokens and
// unknown types.
size_t host_element_size(DType dtype);
// "F32" for PJRT_Buffer_Type_F32.
std::string dtype_name(DType dtype);

class Client;

// A point in the device's work. Owning and movable; a default-constructed event is ready.
class Event {
 public:
  Event() = default;
  Event(std::shared_ptr<const Client> client, PJRT_Event* event)
      : client_(std::move(client)), event_(event) {}
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;
  ~Event() { reset(); }

  bool ready() const;
  // Blocks; throws the Error of the work that failed.
  void await() const;
  // Runs `callback` once the event is ready, on a thread of the plugin or on this one; the argument
  // is null on success. The event itself may be destroyed before. The callback must neither throw
  // nor release the last reference to the client.
  void on_ready(std::function<void(std::exception_ptr)> callback) const;
  // Destroys the underlying event; the object becomes a ready event.
  void reset() noexcept;
  PJRT_Event* handle() const { return event_; }

 private:
  std::shared_ptr<const Client> client_;
  PJRT_Event* event_ = nullptr;
};

struct MemoryStats {
  int64_t bytes_in_use = 0;
  std::optional<int64_t> peak_bytes_in_use, num_allocs, largest_alloc_size, bytes_limit,
      bytes_reserved, peak_bytes_reserved, bytes_reservable_limit, largest_free_block_bytes,
      pool_bytes, peak_pool_bytes;
};

// A device, there or not (Topology).
struct DeviceDescription {
  int id = 0;
  int process_index = 0;
  std::string kind;
  std::string debug_string;
  Options attributes;
};

// What is known of a device when its client is created.
struct DeviceInfo : DeviceDescription {
  const Client* client = nullptr;
  PJRT_Device* handle = nullptr;
  bool addressable = false;
  int local_hardware_id = -1;  // -1: the plugin knows none, or another process has the device
};

// A cheap handle, valid as long as its client.
class Device {
 public:
  explicit Device(const DeviceInfo& info) : info_(&info) {}
  int id() const { return info_->id; }
  int process_index() const { return info_->process_index; }
  int local_hardware_id() const { return info_->local_hardware_id; }
  bool addressable() const { return info_->addressable; }
  const std::string& kind() const { return info_->kind; }
  const std::string& debug_string() const { return info_->debug_string; }
  const Options& attributes() const { return info_->attributes; }
  // Empty where the plugin keeps no statistics.
  std::optional<MemoryStats> memory_stats() const;
  PJRT_Device* handle() const { return info_->handle; }
  bool operator==(const Device& other) const { return info_ == other.info_; }

 private:
  const DeviceInfo* info_;
};

// Element type and dimensions of an array on a device.
struct ArrayType {
  DType dtype = PJRT_Buffer_Type_INVALID;
  std::vector<int64_t> dims;
};

// An array on a device. Owns it; not copyable.
class Buffer {
 public:
  // `type` keeps `client` alive too (Client::own), so that a buffer counts one reference only.
  Buffer(std::shared_ptr<const ArrayType> type, const Client* client, PJRT_Buffer* buffer)
      : type_(std::move(type)), client_(client), buffer_(buffer) {}
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;
  ~Buffer() { reset(); }

  DType dtype() const { return type_->dtype; }
  const std::vector<int64_t>& dims() const { return type_->dims; }
  size_t on_device_size() const;
  // Bytes of a dense row-major copy in host memory.
  size_t host_size() const;
  // Ready once the contents are there, or the computation that makes them failed.
  Event ready() const;
  // Copies into `dst` in dense row-major order; `size` must be at least host_size(). `dst` must
  // stay valid until the event is ready.
  Event copy_to_host(void* dst, size_t size) const;
  // The address of the contents, which may not be ready yet. Valid until the buffer dies or is
  // donated.
  void* unsafe_pointer() const;
  // The same for use outside of the plugin, which leaves the contents there until unshare(). Do not
  // donate the buffer before: the CPU plugin takes a copy instead, others fail.
  void* share() const;
  void unshare() const noexcept;
  bool is_on_cpu() const;
  // True after delete_() and after the buffer was donated to an execution.
  bool is_deleted() const;
  // Releases the device memory now (when work in flight has finished with it), keeping the object.
  void delete_();
  std::unique_ptr<Buffer> copy_to_device(const Device& device) const;
  Device device() const;
  PJRT_Buffer* handle() const { return buffer_; }

 private:
  void reset() noexcept;

  std::shared_ptr<const ArrayType> type_;
  const Client* client_;  // kept alive by type_
  PJRT_Buffer* buffer_;
};

// A value on the devices that a program runs on: one buffer on each, in their order, equal in type.
class Array {
 public:
  // Nearly always there is one buffer: it needs no memory of its own.
  explicit Array(Buffer first) : first_(std::move(first)) {}
  void add(Buffer other) { others_.push_back(std::make_unique<Buffer>(std::move(other))); }

  // A copy of dense row-major host memory on each device; `data` is free again on return.
  static Array from_host(const Client& client, const void* data, DType dtype,
                         std::span<const int64_t> dims, std::span<const Device> devices);
  // The value of the first device on other devices.
  Array copy_to(std::span<const Device> devices) const;
  // Copies the value to those of `devices`, of which the first have it, that do not have it yet.
  void extend_to(std::span<const Device> devices);

  size_t num_buffers() const { return 1 + others_.size(); }
  const Buffer& buffer(size_t i) const { return i == 0 ? first_ : *others_[i - 1]; }

  // Whether a run took the memory over. Where that run failed, the value is lost, and `loss` tells
  // of its failure; empty for all other arrays.
  bool is_deleted() const { return first_.is_deleted(); }
  void set_loss(std::string why) { loss_ = std::make_unique<const std::string>(std::move(why)); }
  const std::string* loss() const { return loss_.get(); }

 private:
  Buffer first_;
  std::vector<std::unique_ptr<Buffer>> others_;  // each stays where it is when others come
  std::unique_ptr<const std::string> loss_;
};

enum class HostSemantics {
  ImmutableOnlyDuringCall,  // copied before the call returns
  UntilTransferCompletes,   // the caller keeps the memory unchanged until on_done
  ZeroCopy,                 // the buffer may alias the memory (never written to) until on_done
  MutableZeroCopy,          // the same, and a donation may write into the memory
};

// From the compiler's analysis of one program, for one device. Host figures concern memory of the
// host that the program uses.
struct CompiledMemoryStats {
  int64_t generated_code_bytes = 0, argument_bytes = 0, output_bytes = 0, alias_bytes = 0,
          temp_bytes = 0;
  int64_t host_generated_code_bytes = 0, host_argument_bytes = 0, host_output_bytes = 0,
          host_alias_bytes = 0, host_temp_bytes = 0;
  int64_t peak_bytes = 0;  // 0 where the plugin does not say
};

struct Program {
  std::string format;  // "hlo", "hlo_with_config" (serialized protocol buffers) or "mlir"
  std::string code;
};

// The result of a compilation, loaded or not.
class CompiledProgram {
 public:
  CompiledProgram(std::shared_ptr<const Plugin> plugin, std::shared_ptr<const Client> client,
                  PJRT_Executable* executable);
  CompiledProgram(const CompiledProgram&) = delete;
  CompiledProgram& operator=(const CompiledProgram&) = delete;
  virtual ~CompiledProgram();

  std::string name() const;
  size_t num_replicas() const;
  size_t num_partitions() const;
  // Per device.
  size_t num_outputs() const { return num_outputs_; }
  // Per device; empty where the plugin cannot tell before an execution.
  const std::vector<ArrayType>& outputs() const { return *outputs_; }
  std::vector<std::string> output_memory_kinds() const;
  int64_t generated_code_size() const;
  std::string serialize() const;
  // Equal for equal programs and options; throws UNIMPLEMENTED where the plugin makes none.
  virtual std::string fingerprint() const;
  // Such as "flops", "bytes accessed", "optimal_seconds".
  Options cost_analysis() const;
  CompiledMemoryStats memory_stats() const;
  Program optimized_program() const;

 protected:
  // Calls a method whose only input is the executable.
  template <auto Field>
  typename Method<Field>::Args query() const;

  std::shared_ptr<const Plugin> plugin_;
  std::shared_ptr<const Client> client_;  // null for a program that was compiled for a topology
  PJRT_Executable* executable_;
  size_t num_outputs_ = 0;
  std::shared_ptr<const std::vector<ArrayType>> outputs_;  // keeps the client alive too

 private:
  void destroy() noexcept;
};

// A program loaded on its devices.
class Executable : public CompiledProgram {
 public:
  struct Result {
    // shared_ptr made in one allocation each: users share buffers, and a step has hundreds of them.
    std::vector<std::shared_ptr<Buffer>> outputs;
    Event done;
  };

  // Of a run on all devices.
  struct ArrayResult {
    std::vector<std::shared_ptr<Array>> outputs;
    std::vector<Event> done;  // one for each device
  };

  // Owns `loaded` once constructed.
  Executable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* loaded);
  ~Executable() override;

  // Runs on all devices() at once, asynchronously. Arguments have a buffer for each, in the same
  // order; those that the program marks with tf.aliasing_output are donated (gone afterwards).
  ArrayResult execute(std::span<const Array* const> args) const;
  // Runs on one device. Arguments are not donated whose index is among `non_donatable`. `device`
  // launches one device of a program compiled for several: the caller launches the others, each
  // from its own thread.
  Result execute(std::span<PJRT_Buffer* const> args, std::span<const int64_t> non_donatable = {},
                 std::optional<Device> device = std::nullopt) const;

  std::string fingerprint() const override;

  // The addressable devices that the program runs on.
  const std::vector<Device>& devices() const { return devices_; }

 private:
  void launch(std::span<PJRT_Buffer* const* const> argument_lists, size_t num_args,
              std::span<const int64_t> non_donatable, PJRT_Buffer** const* output_lists,
              PJRT_Event** done, PJRT_Device* device) const;
  // Takes what a launch gave for output `index`.
  Buffer adopt(PJRT_Buffer* output, size_t index) const;
  ArrayType read_type(PJRT_Buffer* buffer) const;

  PJRT_LoadedExecutable* loaded_;
  std::vector<Device> devices_;
};

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

  // Host memory to device. `dims` empty is a scalar; `byte_strides` empty is dense row-major.
  // `on_done` (may be null) runs once when the plugin no longer needs the memory, on any thread; it
  // is dropped without running when the call throws.
  std::unique_ptr<Buffer> from_host(const void* data, DType dtype, std::span<const int64_t> dims,
                                    std::optional<std::span<const int64_t>> byte_strides,
                                    HostSemantics semantics, const Device& device,
                                    std::function<void()> on_done = nullptr) const;
  // Device memory with undefined contents; throws UNIMPLEMENTED where the plugin cannot.
  std::unique_ptr<Buffer> uninitialized(DType dtype, std::span<const int64_t> dims,
                                        const Device& device) const;

  // A buffer over dense row-major memory of a device that another library owns; `on_done` as above.
  std::unique_ptr<Buffer> view_of_device_memory(void* data, DType dtype,
                                                std::span<const int64_t> dims, const Device& device,
                                                std::function<void()> on_done) const;

  // StableHLO, as text or bytecode.
  std::unique_ptr<Executable> compile(std::string_view stablehlo,
                                      const CompileOptions& options = {}) const;
  // What Executable::serialize() returned, by the same plugin on the same platform. `options`
  // stand for those it was compiled with, to move it to other devices; older plugins ignore them.
  std::unique_ptr<Executable> deserialize(std::string_view serialized,
                                          const std::optional<CompileOptions>& options = {}) const;

  const Plugin& plugin() const { return *plugin_; }
  const std::shared_ptr<Plugin>& shared_plugin() const { return plugin_; }
  PJRT_Client* handle() const { return client_; }
  // The device with this handle.
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
  // The type of a new buffer, in a block that keeps this client alive.
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

  friend class Executable;
};

}  // namespace torch_xla::pjrt
