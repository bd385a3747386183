// The place of this process among the replicas of its job, and the groups of c10d that serve them.
#include <string>
#include <vector>

#include <pybind11/stl.h>
#include <torch/extension.h>

#include "dispatch/replicas/groups.h"
#include "python/init.h"

namespace torch_xla::python {

void init_replicas(pybind11::module_& m) {
  namespace py = pybind11;
  m.def("_xla_set_replica", &dispatch::set_replica, py::arg("rank"), py::arg("count"));
  // `name` is that of a process group which c10d knows.
  m.def(
      "_xla_add_replica_group",
      [](const std::vector<int64_t>& members, const std::string& name) {
        dispatch::add_replica_group(members, name);
      },
      py::arg("members"), py::arg("name"));
  m.def("_xla_has_replica_group",
        [](const std::vector<int64_t>& members) { return dispatch::has_replica_group(members); });
  m.def("_xla_drop_replica_groups", &dispatch::drop_replica_groups);
}

}  // namespace torch_xla::python
