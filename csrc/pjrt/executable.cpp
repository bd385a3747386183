#include "pjrt/executable.h"

#include <utility>

#include "pjrt/client.h"
#include "pjrt/detail.h"
#include "util/unlocked.h"

namespace torch_xla::pjrt {

namespace {

PJRT_Executable* get_executable(const Plugin& plugin, PJRT_LoadedExecutable* loaded) {
  PJRT_LoadedExecutable_GetExecutable_Args args{};
  args.loaded_executable = loaded;
  plugin.call<&PJRT_Api::PJRT_LoadedExecutable_GetExecutable>(args);
  return args.executable;
}

// The plugin's element types and dimensions of all outputs; empty where it cannot tell.
std::vector<ArrayType> read_output_types(const Plugin& plugin, PJRT_Executable* executable) {
  PJRT_Executable_OutputElementTypes_Args types{};
  types.executable = executable;
  PJRT_Executable_OutputDimensions_Args dims{};
  dims.executable = executable;
  if (!plugin.call_if_implemented<&PJRT_Api::PJRT_Executable_OutputElementTypes>(types) ||
      !plugin.call_if_implemented<&PJRT_Api::PJRT_Executable_OutputDimensions>(dims)) {
    return {};
  }
  std::vector<ArrayType> result(types.num_output_types);
  const int64_t* position = dims.dims;
  for (size_t i = 0; i < result.size(); ++i) {
    result[i].dtype = types.output_types[i];
    result[i].dims.assign(position, position + dims.dim_sizes[i]);
    position += dims.dim_sizes[i];
  }
  return result;
}

}  // namespace

CompiledProgram::CompiledProgram(std::shared_ptr<const Plugin> plugin,
                                 std::shared_ptr<const Client> client, PJRT_Executable* executable)
    : plugin_(std::move(plugin)), client_(std::move(client)), executable_(executable) {
  try {
    PJRT_Executable_NumOutputs_Args args{};
    args.executable = executable_;
    plugin_->call<&PJRT_Api::PJRT_Executable_NumOutputs>(args);
    num_outputs_ = args.num_outputs;

    struct Owned {
      std::vector<ArrayType> types;
      std::shared_ptr<const Client> client;
    };
    auto owned = std::make_shared<Owned>(Owned{read_output_types(*plugin_, executable_), client_});
    if (owned->types.size() != num_outputs_) owned->types.clear();
    outputs_ = std::shared_ptr<const std::vector<ArrayType>>(owned, &owned->types);
  } catch (...) {
    destroy();
    throw;
  }
}

CompiledProgram::~CompiledProgram() { destroy(); }

void CompiledProgram::destroy() noexcept {
  if (client_ != nullptr && client_->in_forked_child()) return;
  PJRT_Executable_Destroy_Args args{};
  args.executable = executable_;
  plugin_->free_error(plugin_->try_call<&PJRT_Api::PJRT_Executable_Destroy>(args));
}

template <auto Field>
typename Method<Field>::Args CompiledProgram::query() const {
  if (client_ != nullptr) client_->check_process(Method<Field>::name);
  typename Method<Field>::Args args{};
  args.executable = executable_;
  plugin_->call<Field>(args);
  return args;
}

template <auto Field>
std::optional<typename Method<Field>::Args> CompiledProgram::query_if_implemented() const {
  if (client_ != nullptr) client_->check_process(Method<Field>::name);
  typename Method<Field>::Args args{};
  args.executable = executable_;
  if (!plugin_->call_if_implemented<Field>(args)) return std::nullopt;
  return args;
}

std::string CompiledProgram::name() const {
  auto args = query<&PJRT_Api::PJRT_Executable_Name>();
  return std::string(args.executable_name, args.executable_name_size);
}

size_t CompiledProgram::num_partitions() const {
  return query<&PJRT_Api::PJRT_Executable_NumPartitions>().num_partitions;
}

std::string CompiledProgram::serialize() const {
  auto args = query<&PJRT_Api::PJRT_Executable_Serialize>();
  std::string result;
  try {
    result.assign(args.serialized_bytes, args.serialized_bytes_size);
  } catch (...) {
    args.serialized_executable_deleter(args.serialized_executable);
    throw;
  }
  args.serialized_executable_deleter(args.serialized_executable);
  return result;
}

OptimizedModule CompiledProgram::optimized_module() const {
  if (client_ != nullptr) client_->check_process("PJRT_Executable_OptimizedProgram");
  PJRT_Program program{};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  PJRT_Executable_OptimizedProgram_Args args{};
  args.executable = executable_;
  args.program = &program;
  plugin_->call<&PJRT_Api::PJRT_Executable_OptimizedProgram>(args);  // tells the size
  OptimizedModule module;
  module.bytes.resize(program.code_size);
  program.code = module.bytes.data();
  plugin_->call<&PJRT_Api::PJRT_Executable_OptimizedProgram>(args);
  module.format.assign(program.format, program.format_size);
  return module;
}

std::string CompiledProgram::fingerprint() const {
  auto args = query<&PJRT_Api::PJRT_Executable_Fingerprint>();
  return std::string(args.executable_fingerprint, args.executable_fingerprint_size);
}

Options CompiledProgram::cost_analysis() const {
  const auto args = query_if_implemented<&PJRT_Api::PJRT_Executable_GetCostAnalysis>();
  return args ? read_named_values(args->properties, args->num_properties) : Options();
}

std::optional<CompiledMemoryStats> CompiledProgram::memory_stats() const {
  const auto args = query_if_implemented<&PJRT_Api::PJRT_Executable_GetCompiledMemoryStats>();
  if (!args) return std::nullopt;
  CompiledMemoryStats stats;
  stats.generated_code_bytes = args->generated_code_size_in_bytes;
  stats.argument_bytes = args->argument_size_in_bytes;
  stats.output_bytes = args->output_size_in_bytes;
  stats.alias_bytes = args->alias_size_in_bytes;
  stats.temp_bytes = args->temp_size_in_bytes;
  stats.host_generated_code_bytes = args->host_generated_code_size_in_bytes;
  stats.host_argument_bytes = args->host_argument_size_in_bytes;
  stats.host_output_bytes = args->host_output_size_in_bytes;
  stats.host_alias_bytes = args->host_alias_size_in_bytes;
  stats.host_temp_bytes = args->host_temp_size_in_bytes;
  stats.peak_bytes = args->peak_memory_in_bytes;
  return stats;
}

namespace {

std::unique_ptr<Executable> owner_of(PJRT_LoadedExecutable* loaded, const Client& client) {
  try {
    return std::make_unique<Executable>(client.shared_from_this(), loaded);
  } catch (...) {
    PJRT_LoadedExecutable_Destroy_Args args{};
    args.executable = loaded;
    const Plugin& plugin = client.plugin();
    plugin.free_error(plugin.try_call<&PJRT_Api::PJRT_LoadedExecutable_Destroy>(args));
    throw;
  }
}

}  // namespace

std::unique_ptr<Executable> Executable::compile(const Client& client, std::string_view stablehlo,
                                                const CompileOptions& options) {
  client.check_process("PJRT_Client_Compile");
  const std::string serialized = options.serialize();
  PJRT_Program program = stablehlo_program(stablehlo);
  PJRT_Client_Compile_Args args{};
  args.client = client.handle();
  args.program = &program;
  args.compile_options = serialized.data();
  args.compile_options_size = serialized.size();
  client.plugin().call<&PJRT_Api::PJRT_Client_Compile>(args);
  return owner_of(args.executable, client);
}

std::unique_ptr<Executable> Executable::deserialize(const Client& client,
                                                    std::string_view serialized,
                                                    const std::optional<CompileOptions>& options) {
  client.check_process("PJRT_Executable_DeserializeAndLoad");
  const std::string overriding = options ? options->serialize() : "";
  PJRT_Executable_DeserializeAndLoad_Args args{};
  args.client = client.handle();
  args.serialized_executable = serialized.data();
  args.serialized_executable_size = serialized.size();
  if (options) {
    args.overridden_serialized_compile_options = overriding.data();
    args.overridden_serialized_compile_options_size = overriding.size();
  }
  client.plugin().call<&PJRT_Api::PJRT_Executable_DeserializeAndLoad>(args);
  return owner_of(args.loaded_executable, client);
}

Executable::Executable(std::shared_ptr<const Client> client, PJRT_LoadedExecutable* loaded)
    : CompiledProgram(client->shared_plugin(), client, get_executable(client->plugin(), loaded)),
      loaded_(loaded) {
  PJRT_LoadedExecutable_AddressableDevices_Args args{};
  args.executable = loaded_;
  plugin_->call<&PJRT_Api::PJRT_LoadedExecutable_AddressableDevices>(args);
  for (size_t i = 0; i < args.num_addressable_devices; ++i) {
    devices_.push_back(client_->find_device(args.addressable_devices[i]));
  }
}

Executable::~Executable() {
  if (client_->in_forked_child()) return;
  PJRT_LoadedExecutable_Destroy_Args args{};
  args.executable = loaded_;
  plugin_->free_error(plugin_->try_call<&PJRT_Api::PJRT_LoadedExecutable_Destroy>(args));
}

std::string Executable::fingerprint() const {
  if (plugin_->has<&PJRT_Api::PJRT_Executable_Fingerprint>()) return CompiledProgram::fingerprint();
  client_->check_process("PJRT_LoadedExecutable_Fingerprint");
  PJRT_LoadedExecutable_Fingerprint_Args args{};
  args.executable = loaded_;
  plugin_->call<&PJRT_Api::PJRT_LoadedExecutable_Fingerprint>(args);
  return std::string(args.executable_fingerprint, args.executable_fingerprint_size);
}

Executable::ArrayResult Executable::execute(std::span<const Array* const> args,
                                            std::span<const int64_t> non_donatable) const {
  const size_t num_devices = devices_.size(), num_args = args.size();
  // The first device's, then the second's, and so on.
  std::vector<PJRT_Buffer*> arguments(num_devices * num_args), outputs(num_devices * num_outputs_);
  for (size_t i = 0; i < num_args; ++i) {
    if (args[i]->num_buffers() != num_devices) {
      throw Error("PJRT_LoadedExecutable_Execute", PJRT_Error_Code_INVALID_ARGUMENT,
                  "expected argument " + std::to_string(i) + " on " + std::to_string(num_devices) +
                      " devices, got it on " + std::to_string(args[i]->num_buffers()) +
                      ". Copy it to the others first.");
    }
    for (size_t d = 0; d < num_devices; ++d) {
      arguments[d * num_args + i] = args[i]->buffer(d).handle();
    }
  }
  std::vector<PJRT_Buffer* const*> argument_lists;
  std::vector<PJRT_Buffer**> output_lists;
  for (size_t d = 0; d < num_devices; ++d) {
    argument_lists.push_back(arguments.data() + d * num_args);
    output_lists.push_back(outputs.data() + d * num_outputs_);
  }
  std::vector<PJRT_Event*> done(num_devices);
  launch(argument_lists, num_args, non_donatable, output_lists.data(), done.data(), nullptr);

  ArrayResult result;
  for (PJRT_Event* event : done) result.done.emplace_back(client_, event);
  result.outputs.reserve(num_outputs_);
  for (size_t i = 0; i < num_outputs_; ++i) {
    auto array = std::make_shared<Array>(adopt(outputs[i], i));
    for (size_t d = 1; d < num_devices; ++d) array->add(adopt(output_lists[d][i], i));
    result.outputs.push_back(std::move(array));
  }
  return result;
}

Executable::Result Executable::execute(std::span<PJRT_Buffer* const> args,
                                       std::span<const int64_t> non_donatable,
                                       std::optional<Device> device) const {
  PJRT_Buffer* const* argument_list = args.data();
  std::vector<PJRT_Buffer*> outputs(num_outputs_);
  PJRT_Buffer** output_list = outputs.data();
  PJRT_Event* done = nullptr;
  launch({&argument_list, 1}, args.size(), non_donatable, &output_list, &done,
         device ? device->handle() : nullptr);

  Result result;
  result.done = Event(client_, done);
  for (size_t i = 0; i < num_outputs_; ++i) {
    result.outputs.push_back(std::make_shared<Buffer>(adopt(outputs[i], i)));
  }
  return result;
}

void Executable::launch(std::span<PJRT_Buffer* const* const> argument_lists, size_t num_args,
                        std::span<const int64_t> non_donatable, PJRT_Buffer** const* output_lists,
                        PJRT_Event** done, PJRT_Device* device) const {
  client_->check_process("PJRT_LoadedExecutable_Execute");
  PJRT_ExecuteOptions options{};
  options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
  options.non_donatable_input_indices = non_donatable.data();
  options.num_non_donatable_input_indices = non_donatable.size();
  PJRT_LoadedExecutable_Execute_Args args{};
  args.executable = loaded_;
  args.options = &options;
  args.argument_lists = argument_lists.data();
  args.num_devices = argument_lists.size();
  args.num_args = num_args;
  args.output_lists = output_lists;
  args.device_complete_events = done;
  args.execute_device = device;
  // The plugin may wait for a place in its queue, or compute before it returns.
  util::Unlocked unlocked;
  plugin_->call<&PJRT_Api::PJRT_LoadedExecutable_Execute>(args);
  unlocked.end();
}

Buffer Executable::adopt(PJRT_Buffer* output, size_t index) const {
  // One count on the shared block of types, which holds the client too.
  std::shared_ptr<const ArrayType> type =
      outputs_->empty() ? owned(read_type(output), *client_)
                        : std::shared_ptr<const ArrayType>(outputs_, &(*outputs_)[index]);
  return Buffer(std::move(type), client_.get(), output);
}

ArrayType Executable::read_type(PJRT_Buffer* buffer) const {
  PJRT_Buffer_ElementType_Args type{};
  type.buffer = buffer;
  plugin_->call<&PJRT_Api::PJRT_Buffer_ElementType>(type);
  PJRT_Buffer_Dimensions_Args dims{};
  dims.buffer = buffer;
  plugin_->call<&PJRT_Api::PJRT_Buffer_Dimensions>(dims);
  return {type.type, {dims.dims, dims.dims + dims.num_dims}};
}

}  // namespace torch_xla::pjrt
