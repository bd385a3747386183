// The binding functions, one per area, each in its own file.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_xla::pjrt {
class Device;
}

namespace torch_xla::python {

void init_errors(pybind11::module_& m);
void init_flags(pybind11::module_& m);
void init_metrics(pybind11::module_& m);
void init_runtime(pybind11::module_& m);
void init_tensor(pybind11::module_& m);
void init_graph(pybind11::module_& m);
void init_explain(pybind11::module_& m);
void init_kept_runs(pybind11::module_& m);
void init_profiler(pybind11::module_& m);
void init_dispatch(pybind11::module_& m);
void init_source(pybind11::module_& m);
void init_topology(pybind11::module_& m);
void init_control_flow(pybind11::module_& m);
void init_traced(pybind11::module_& m);
void init_export(pybind11::module_& m);
void init_builder(pybind11::module_& m);
void init_sharding(pybind11::module_& m);
void init_replicas(pybind11::module_& m);
void init_unlocked(pybind11::module_& m);

// Returns 1 for "xla:1", and the current device for "xla" and "".
int device_index(const std::string& device);
// Returns a name such as "CPU:0".
std::string real_device_name(const pjrt::Device& device);

}  // namespace torch_xla::python
