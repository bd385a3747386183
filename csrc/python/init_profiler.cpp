// torch_xla.debug.profiler is made of these: the events of a profile, and scopes that add to them.
#include <fstream>
#include <iterator>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "cpu/sampler.h"
#include "debug/trace.h"
#include "executor/compile/compile.h"
#include "executor/run/runtime.h"
#include "python/init.h"
#include "python/settled.h"
#include "spmd/compiled_module.h"
#include "util/error.h"

namespace py = pybind11;
using py::literals::operator""_a;

namespace torch_xla::python {
namespace {

// A part of the user's program: an event from __enter__ to __exit__, with details.
class TraceMe {
 public:
  TraceMe(std::string name, const py::kwargs& details) : name_(std::move(name)) { add(details); }
  void add(const py::kwargs& details) {
    for (const auto& [key, value] : details) {
      details_.emplace_back(py::str(key), py::str(value));
    }
  }
  void enter() { begin_ = debug::is_tracing() ? debug::now_ns() : 0; }
  void exit() {
    if (begin_ == 0 || !debug::is_tracing()) return;
    debug::add_event({name_, begin_, debug::now_ns(), details_});
    begin_ = 0;
  }

 private:
  const std::string name_;
  std::vector<std::pair<std::string, std::string>> details_;
  int64_t begin_ = 0;  // 0: not kept
};

std::vector<py::dict> stop_trace() {
  std::vector<py::dict> tracks;
  for (const debug::Track& track : debug::stop_trace()) {
    std::vector<py::tuple> events;
    for (const debug::Event& e : track.events) {
      events.push_back(py::make_tuple(e.name, e.begin, e.end, e.details));
    }
    tracks.push_back(py::dict("name"_a = track.name, "id"_a = track.id,
                              "is_device"_a = track.is_device, "events"_a = events));
  }
  return tracks;
}

std::vector<py::tuple> stop_sampling() {
  std::vector<cpu::CodeSample> samples;
  {
    const py::gil_scoped_release no_gil;
    samples = cpu::stop_sampling();
  }
  std::vector<py::tuple> result;
  for (const cpu::CodeSample& s : samples) {
    result.push_back(py::make_tuple(s.time, s.thread, s.address));
  }
  return result;
}

// The plugin's serialized executable. The CPU's saves no code of one that was loaded.
std::string saved(const pjrt::Executable& executable, const std::string& file) {
  if (file.empty()) return executable.serialize();
  std::ifstream stream(file, std::ios::binary);  // which may be gone
  return {std::istreambuf_iterator(stream), {}};
}

// The plugin's serialized program, and the purposes of its instructions, by their names.
py::list code_of(const std::string& graph) {
  py::list executables;
  for (const auto& program : executor::cached_programs()) {
    if (program->key.hex() != graph) continue;
    for (size_t i = 0; i < program->executables.size(); ++i) {
      const pjrt::Executable& executable = *program->executables[i];
      const pjrt::OptimizedModule module = executable.optimized_module();
      py::dict origins;
      for (const auto& [name, o] : spmd::read_origins(module.bytes, module.with_config())) {
        origins[py::str(name)] = py::make_tuple(o.operation, o.line);
      }
      executables.append(py::make_tuple(py::bytes(saved(executable, program->files[i])), origins));
    }
  }
  return executables;
}

}  // namespace

void init_profiler(py::module_& m) {
  py::class_<TraceMe>(m, "_TraceMe")
      .def(py::init<std::string, const py::kwargs&>())
      .def("set_metadata", &TraceMe::add)
      .def_static("is_enabled", &debug::is_tracing)
      .def(
          "__enter__",
          [](TraceMe& self) -> TraceMe& {
            self.enter();
            return self;
          },
          py::return_value_policy::reference)
      .def("__exit__", [](TraceMe& self, const py::object&, const py::object&, const py::object&) {
        self.exit();
      });
  m.def("_xla_start_trace", settled(&debug::start_trace), "kernels"_a = false);
  m.def("_xla_stop_trace", settled(&stop_trace));
  // (time in nanoseconds, thread, address) of the threads that compute.
  m.def("_xla_start_sampling", &cpu::start_sampling);
  m.def("_xla_stop_sampling", &stop_sampling);
  m.attr("_xla_sample_period") = cpu::kSamplePeriod;
  m.def("_xla_code_of_program", settled(&code_of), "graph"_a);
  m.def("_xla_is_tracing", &debug::is_tracing);
  py::class_<pjrt::Profiler>(m, "_PluginProfile").def("stop", [](pjrt::Profiler& profiler) {
    std::string space;
    {
      const py::gil_scoped_release no_gil;
      space = profiler.stop();
    }
    return py::bytes(space);
  });
  m.def("_xla_start_plugin_profile", &executor::profile_plugin, "options"_a,
        py::call_guard<py::gil_scoped_release>());
}

}  // namespace torch_xla::python
