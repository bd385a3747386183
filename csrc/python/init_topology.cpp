// Programs compiled for devices that are not there: torch_xla.aot builds on these.
#include <memory>
#include <string>

#include <pybind11/stl.h>

#include "pjrt/topology.h"
#include "python/init.h"
#include "spmd/compiled_module.h"
#include "util/error.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using pjrt::CompiledProgram;
using pjrt::Topology;

std::unique_ptr<Topology> make_topology(const std::string& library, const std::string& name,
                                        const pjrt::Options& options) {
  const py::gil_scoped_release release;
  return Topology::create(pjrt::Plugin::load(library), name, options);
}

// For the topology's first device, or for all where the program is partitioned.
std::unique_ptr<CompiledProgram> compile(const Topology& topology, const std::string& stablehlo,
                                         const pjrt::Options& flags, bool partitioned) {
  const py::gil_scoped_release release;
  pjrt::CompileOptions options;
  for (const pjrt::DeviceDescription& device : topology.devices()) {
    options.device_ids.push_back(device.id);
    if (!partitioned) break;
  }
  if (partitioned) {
    options.num_partitions = static_cast<int>(options.device_ids.size());
    options.use_spmd = options.use_shardy = true;
    options.allow_spmd_sharding_propagation_to_output = {true};
  }
  options.env_overrides = flags;
  return topology.compile(stablehlo, options);
}

py::list devices(const Topology& topology) {
  py::list all;
  for (const pjrt::DeviceDescription& device : topology.devices()) {
    py::dict description;
    description["id"] = device.id;
    description["kind"] = device.kind;
    description["attributes"] = device.attributes;
    all.append(description);
  }
  return all;
}

py::dict memory(const CompiledProgram& program) {
  const std::optional<pjrt::CompiledMemoryStats> found = program.memory_stats();
  TXLA_CHECK(found.has_value(), "expected a plugin that tells what memory a program needs");
  const pjrt::CompiledMemoryStats& stats = *found;
  py::dict bytes;
  bytes["arguments"] = stats.argument_bytes;
  bytes["outputs"] = stats.output_bytes;
  bytes["aliased"] = stats.alias_bytes;
  bytes["temporaries"] = stats.temp_bytes;
  bytes["generated_code"] = stats.generated_code_bytes;
  bytes["peak"] = stats.peak_bytes;
  bytes["host_arguments"] = stats.host_argument_bytes;
  bytes["host_outputs"] = stats.host_output_bytes;
  bytes["host_aliased"] = stats.host_alias_bytes;
  bytes["host_temporaries"] = stats.host_temp_bytes;
  bytes["host_generated_code"] = stats.host_generated_code_bytes;
  return bytes;
}

}  // namespace

void init_topology(py::module_& m) {
  py::class_<CompiledProgram>(m, "_CompiledProgram")
      .def_property_readonly("name", &CompiledProgram::name)
      // In bytes for each device; a peak of 0: the plugin does not say.
      .def("memory", &memory)
      .def("cost", &CompiledProgram::cost_analysis)
      // That the compiler expects of a run, but for what is sent; 0 where it does not tell.
      .def("cycles",
           [](const CompiledProgram& p) {
             const pjrt::OptimizedModule module = p.optimized_module();
             return spmd::read_cycles(module.bytes, module.with_config());
           })
      // The exchanges of devices: kind, bytes on each, how often, groups of devices, operation and
      // its line.
      .def("collectives",
           [](const CompiledProgram& p) {
             const pjrt::OptimizedModule module = p.optimized_module();
             py::list all;
             for (const spmd::Collective& c :
                  spmd::read_collectives(module.bytes, module.with_config())) {
               all.append(py::make_tuple(c.kind, c.bytes, c.times, c.groups, c.origin.operation,
                                         c.origin.line));
             }
             return all;
           })
      .def("serialize", [](const CompiledProgram& p) { return py::bytes(p.serialize()); });
  py::class_<Topology>(m, "_Topology", "Devices by name: \"v5e:2x2\".")
      .def(py::init(&make_topology), py::arg("library"), py::arg("name"),
           py::arg("options") = pjrt::Options())
      .def_property_readonly("platform_name", &Topology::platform_name)
      .def("devices", &devices)
      .def("compile", &compile, py::arg("stablehlo"), py::arg("flags") = pjrt::Options(),
           py::arg("partitioned") = false);
}

}  // namespace torch_xla::python
