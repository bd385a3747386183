// Compiled programs: queries the compiler's analysis of them and runs them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt/buffer.h"
#include "pjrt/compile_options.h"
#include "pjrt/methods.h"

namespace torch_xla::pjrt {

// The compiler's analysis of the memory of one program, for one device. Host figures concern memory
// of the host that the program uses.
struct CompiledMemoryStats {
  int64_t generated_code_bytes = 0, argument_bytes = 0, output_bytes = 0, alias_bytes = 0,
          temp_bytes = 0;
  int64_t host_generated_code_bytes = 0, host_argument_bytes = 0, host_output_bytes = 0,
          host_alias_bytes = 0, host_temp_bytes = 0;
  int64_t peak_bytes = 0;  // 0 where the plugin does not say
};

// A program as the compiler has made it: a protocol buffer of XLA, xla.HloModuleProto ("hlo") or
// xla.HloModuleProtoWithConfig ("hlo_with_config").
struct OptimizedModule {
  std::string format, bytes;
  bool with_config() const { return format == "hlo_with_config"; }
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
  size_t num_partitions() const;
  // Per device.
  size_t num_outputs() const { return num_outputs_; }
  // Per device; empty where the plugin cannot tell before an execution.
  const std::vector<ArrayType>& outputs() const { return *outputs_; }
  std::string serialize() const;
  OptimizedModule optimized_module() const;
  // Returns a text that is equal for equal programs and options; throws UNIMPLEMENTED where the
  // plugin makes none.
  virtual std::string fingerprint() const;
  // Returns properties such as "flops", "bytes accessed", "optimal_seconds"; none where the plugin
  // makes no estimates (CUDA's, of a program for a topology).
  Options cost_analysis() const;
  std::optional<CompiledMemoryStats> memory_stats() const;  // none where the plugin does not tell

 protected:
  // Calls a method whose only input is the executable.
  template <auto Field>
  typename Method<Field>::Args query() const;
  // Does the same for a method that plugins may lack.
  template <auto Field>
  std::optional<typename Method<Field>::Args> query_if_implemented() const;

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

  // The result of a run on all devices.
  struct ArrayResult {
    std::vector<std::shared_ptr<Array>> outputs;
    std::vector<Event> done;  // one for each device
  };

  // Compiles StableHLO, given as text or bytecode.
  static std::unique_ptr<Executable> compile(const Client& client, std::string_view stablehlo,
                                             const CompileOptions& options = {});
  // Loads what serialize() returned, by the same plugin on the same platform. `options` replace
  // those that it was compiled with, to move it to other devices; older plugins ignore them.
  static std::unique_ptr<Executable> deserialize(const Client& client, std::string_view serialized,
                                                 const std::optional<CompileOptions>& options = {});
  // Owns `loaded` once constructed.
  Executable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* loaded);
  ~Executable() override;

  // Runs on all devices() at once, asynchronously. Arguments have a buffer for each, in the same
  // order; those that the program marks with tf.aliasing_output are donated (gone afterwards), but
  // for those whose index is among `non_donatable`.
  ArrayResult execute(std::span<const Array* const> args,
                      std::span<const int64_t> non_donatable = {}) const;
  // Runs on one device, alike. `device` picks one device of a program compiled for several: the
  // caller launches the others, each from its own thread.
  Result execute(std::span<PJRT_Buffer* const> args, std::span<const int64_t> non_donatable = {},
                 std::optional<Device> device = std::nullopt) const;

  std::string fingerprint() const override;

  // The addressable devices that the program runs on.
  const std::vector<Device>& devices() const { return devices_; }

 private:
  void launch(std::span<PJRT_Buffer* const* const> argument_lists, size_t num_args,
              std::span<const int64_t> non_donatable, PJRT_Buffer** const* output_lists,
              PJRT_Event** done, PJRT_Device* device) const;
  // Wraps the buffer that a launch gave for output `index`.
  Buffer adopt(PJRT_Buffer* output, size_t index) const;
  ArrayType read_type(PJRT_Buffer* buffer) const;

  PJRT_LoadedExecutable* loaded_;
  std::vector<Device> devices_;
};

}  // namespace torch_xla::pjrt
