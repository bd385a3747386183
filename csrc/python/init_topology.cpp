// Programs compiled for devices that are not there.
#include <memory>
#include <string>

#include <pybind11/stl.h>

#include "pjrt/topology.h"
#include "python/init.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using TopologyPtr = std::unique_ptr<pjrt::Topology>;

TopologyPtr make_topology(const std::string& library, const std::string& name) {
  const py::gil_scoped_release release;
  return pjrt::Topology::create(pjrt::Plugin::load(library), name);
}

// For the topology's first device. Gives what the compiler tells of the program's cost.
pjrt::Options compile(const pjrt::Topology& topology, const std::string& stablehlo) {
  const py::gil_scoped_release release;
  pjrt::CompileOptions options;
  options.device_ids = {topology.devices().at(0).id};
  return topology.compile(stablehlo, options)->cost_analysis();
}

}  // namespace

void init_topology(py::module_& m) {
  py::class_<pjrt::Topology, TopologyPtr>(m, "_Topology", "Devices by name: \"v5e:2x2\".")
      .def(py::init(&make_topology), py::arg("library"), py::arg("name"))
      .def("compile", &compile, py::arg("stablehlo"));
}

}  // namespace torch_xla::python
