// Topology, a set of devices by name ("v5p:8x8x8"), which need not be there. It compiles programs
// for them ahead of time. A client of the same plugin loads the results elsewhere with
// Executable::deserialize.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt/executable.h"

namespace torch_xla::pjrt {

class Topology {
 public:
  static std::unique_ptr<Topology> create(std::shared_ptr<Plugin> plugin, std::string_view name,
                                          const Options& options = {});
  ~Topology();
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  std::string platform_name() const;
  std::vector<DeviceDescription> devices() const;
  std::unique_ptr<CompiledProgram> compile(std::string_view stablehlo,
                                           const CompileOptions& options) const;

 private:
  Topology(std::shared_ptr<const Plugin> plugin, PJRT_TopologyDescription* topology)
      : plugin_(std::move(plugin)), topology_(topology) {}

  // Calls a method whose only input is the topology.
  template <auto Field>
  typename Method<Field>::Args query() const;

  std::shared_ptr<const Plugin> plugin_;
  PJRT_TopologyDescription* topology_;
};

}  // namespace torch_xla::pjrt
