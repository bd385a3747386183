#include "pjrt/topology.h"

#include <utility>

#include "pjrt/detail.h"

namespace torch_xla::pjrt {

DeviceDescription read_description(const Plugin& plugin, PJRT_DeviceDescription* handle) {
  DeviceDescription result;
  PJRT_DeviceDescription_Id_Args id{};
  id.device_description = handle;
  plugin.call<&PJRT_Api::PJRT_DeviceDescription_Id>(id);
  result.id = id.id;

  PJRT_DeviceDescription_ProcessIndex_Args process{};
  process.device_description = handle;
  plugin.call<&PJRT_Api::PJRT_DeviceDescription_ProcessIndex>(process);
  result.process_index = process.process_index;

  PJRT_DeviceDescription_Kind_Args kind{};
  kind.device_description = handle;
  plugin.call<&PJRT_Api::PJRT_DeviceDescription_Kind>(kind);
  result.kind.assign(kind.device_kind, kind.device_kind_size);

  PJRT_DeviceDescription_DebugString_Args debug{};
  debug.device_description = handle;
  plugin.call<&PJRT_Api::PJRT_DeviceDescription_DebugString>(debug);
  result.debug_string.assign(debug.debug_string, debug.debug_string_size);

  PJRT_DeviceDescription_Attributes_Args attributes{};
  attributes.device_description = handle;
  plugin.call<&PJRT_Api::PJRT_DeviceDescription_Attributes>(attributes);
  result.attributes = read_named_values(attributes.attributes, attributes.num_attributes);
  return result;
}

PJRT_Program stablehlo_program(std::string_view stablehlo) {
  constexpr std::string_view kFormat = "mlir";
  PJRT_Program program{};
  program.struct_size = PJRT_Program_STRUCT_SIZE;
  program.code = const_cast<char*>(stablehlo.data());  // an input here, never written
  program.code_size = stablehlo.size();
  program.format = kFormat.data();
  program.format_size = kFormat.size();
  return program;
}

std::unique_ptr<Topology> Topology::create(std::shared_ptr<Plugin> plugin, std::string_view name,
                                           const Options& options) {
  std::vector<PJRT_NamedValue> values = to_named_values(options);
  PJRT_TopologyDescription_Create_Args args{};
  args.topology_name = name.data();
  args.topology_name_size = name.size();
  args.create_options = values.data();
  args.num_options = values.size();
  plugin->call<&PJRT_Api::PJRT_TopologyDescription_Create>(args);
  return std::unique_ptr<Topology>(new Topology(std::move(plugin), args.topology));
}

Topology::~Topology() {
  PJRT_TopologyDescription_Destroy_Args args{};
  args.topology = topology_;
  plugin_->free_error(plugin_->try_call<&PJRT_Api::PJRT_TopologyDescription_Destroy>(args));
}

template <auto Field>
typename Method<Field>::Args Topology::query() const {
  typename Method<Field>::Args args{};
  args.topology = topology_;
  plugin_->call<Field>(args);
  return args;
}

std::string Topology::platform_name() const {
  auto args = query<&PJRT_Api::PJRT_TopologyDescription_PlatformName>();
  return std::string(args.platform_name, args.platform_name_size);
}

std::vector<DeviceDescription> Topology::devices() const {
  auto args = query<&PJRT_Api::PJRT_TopologyDescription_GetDeviceDescriptions>();
  std::vector<DeviceDescription> result;
  for (size_t i = 0; i < args.num_descriptions; ++i) {
    result.push_back(read_description(*plugin_, args.descriptions[i]));
  }
  return result;
}

std::unique_ptr<CompiledProgram> Topology::compile(std::string_view stablehlo,
                                                   const CompileOptions& options) const {
  const std::string serialized = options.serialize();
  PJRT_Program program = stablehlo_program(stablehlo);
  PJRT_Compile_Args args{};
  args.topology = topology_;
  args.program = &program;
  args.compile_options = serialized.data();
  args.compile_options_size = serialized.size();
  plugin_->call<&PJRT_Api::PJRT_Compile>(args);
  return std::make_unique<CompiledProgram>(plugin_, nullptr, args.executable);
}

}  // namespace torch_xla::pjrt
