// The extension torch_xla._XLAC: one init_<area> per area of csrc/.
#include "python/init.h"

PYBIND11_MODULE(_XLAC, m) {
  using namespace torch_xla::python;
  m.doc() = "The C++ core of torch_xla; documented Python modules are in torch_xla.";
  init_errors(m);
  init_flags(m);
  init_metrics(m);
  init_runtime(m);
  init_tensor(m);
  init_graph(m);
  init_explain(m);
  init_kept_runs(m);
  init_profiler(m);
  init_dispatch(m);
  init_source(m);
  init_topology(m);
  init_control_flow(m);
  init_traced(m);
  init_export(m);
  init_builder(m);
  init_sharding(m);
  init_replicas(m);
  init_unlocked(m);
}
