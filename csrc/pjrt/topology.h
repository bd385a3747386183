// Topology, a set of devices by name ("v5p:8x8x8"), which need not be there. It compiles programs
// for them ahead of time. A client of the same plugin loads the results elsewhere with
// Client::deserialize.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "pjrt/client.h"

namespace torch_xla::pjrt {

class Topology {
 public:
  static std::unique_ptr<Topology> create(std::shared_ptr<Plugin> plugin, std::string_view name,
                                          const Options& options = {});
  // Returns the topology of a client's own devices.
  static std::unique_ptr<Topology> of(std::shared_ptr<const Client> client);
  ~Topology();
  Topology(const Topology&) = delete;
  Topology& operator=(const Topology&) = delete;

  std::string platform_name() const;
  std::string platform_version() const;
  Options attributes() const;
  std::vector<DeviceDescription> devices() const;
  std::unique_ptr<CompiledProgram> compile(std::string_view stablehlo,
                                           const CompileOptions& options) const;
  // Returns text that stands for the topology in cache keys.
  std::string serialize() const;

 private:
  Topology(std::shared_ptr<const Plugin> plugin, std::shared_ptr<const Client> client,
           PJRT_TopologyDescription* topology)
      : plugin_(std::move(plugin)), client_(std::move(client)), topology_(topology) {}

  // Calls a method whose only input is the topology.
  template <auto Field>
  typename Method<Field>::Args query() const;

  std::shared_ptr<const Plugin> plugin_;
  std::shared_ptr<const Client> client_;  // the owner of topology_, where it is a client's
  PJRT_TopologyDescription* topology_;
};

}  // namespace torch_xla::pjrt
