// The place of this process among the replicas of its job, and the groups of c10d that serve them.
#include <chrono>
#include <string>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "debug/metrics.h"
#include "dispatch/replicas/agreement.h"
#include "dispatch/replicas/apart.h"
#include "dispatch/replicas/exchange.h"
#include "dispatch/replicas/exchange_times.h"
#include "dispatch/replicas/groups.h"
#include "dispatch/replicas/order.h"
#include "executor/run/doing.h"
#include "executor/run/run_time.h"
#include "executor/stored/job_programs.h"
#include "python/init.h"
#include "util/hooks.h"

namespace torch_xla::python {

namespace {

namespace py = pybind11;

std::string tell_job() {
  const py::gil_scoped_acquire gil;
  return py::module_::import("torch_xla._src.job.watch").attr("tell_job")().cast<std::string>();
}

const char* name_of(executor::Work work) {
  switch (work) {
    case executor::Work::Compiles:
      return "compiles";
    case executor::Work::WaitsForCompiler:
      return "waits for";
    default:
      return "waits for an exchange:";
  }
}

// The work, its text and its seconds, of each thread; the seconds since the last launch; the sum of
// all counters, as far as they have come: nothing is waited for.
py::tuple doing() {
  py::list notes;
  for (const executor::Note& note : executor::doing()) {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - note.since;
    notes.append(py::make_tuple(name_of(note.work), note.text, taken.count()));
  }
  int64_t counted = 0;
  for (const std::string& name : debug::counter_names()) {
    counted += debug::counter_value(name).value_or(0);
  }
  return py::make_tuple(notes, executor::RunTime::seconds_since_launch(), counted);
}

std::vector<py::dict> exchanges(bool clear) {
  using namespace py::literals;
  std::vector<py::dict> all;
  for (const dispatch::ExchangeTime& e : dispatch::exchange_times(clear)) {
    all.push_back(py::dict("exchange"_a = e.what, "place"_a = e.line,
                           "ranks"_a = py::tuple(py::cast(e.members)), "count"_a = e.count,
                           "seconds"_a = e.seconds));
  }
  return all;
}

}  // namespace

void init_replicas(pybind11::module_& m) {
  util::hooks.exchanging = &dispatch::note_exchanges;
  util::hooks.tell_job = &tell_job;
  m.def("_xla_doing", &doing);
  m.def("_xla_exchanges", &exchanges, py::arg("clear"));
  m.def("_xla_exchanges_on_host", &dispatch::exchanges_on_host);
  m.def("_xla_set_replica", &dispatch::set_replica, py::arg("rank"), py::arg("count"));
  // `name` is that of a process group which c10d knows.
  m.def(
      "_xla_add_replica_group",
      [](const std::vector<int64_t>& members, const std::string& name) {
        dispatch::add_replica_group(members, name);
      },
      py::arg("members"), py::arg("name"));
  // Until one of the others is called who needs a program waits.
  m.def("_xla_look_for_job_store", &executor::JobPrograms::look_for_store);
  m.def("_xla_compile_alone", &executor::JobPrograms::go_alone);
  m.def("_xla_share_programs", &executor::JobPrograms::found_store, py::arg("host"),
        py::arg("port"), py::arg("prefix"), py::arg("rank"), py::arg("count"),
        py::call_guard<py::gil_scoped_release>());
  // Launches what was recorded and waits; then what was sent has come.
  m.def(
      "_xla_launch_exchanges", [] { dispatch::launch_exchanges(); },
      py::call_guard<py::gil_scoped_release>());
  m.def("_xla_finish_sends", &dispatch::finish_sends, py::call_guard<py::gil_scoped_release>());
}

}  // namespace torch_xla::python
