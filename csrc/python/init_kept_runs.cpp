// Runs that are kept, and the replay of their calls, for torch_xla.debug's cost() and
// first_fault().
#include <ATen/ops/empty_strided.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch/judge/call_on_cpu.h"
#include "executor/compile/cause.h"
#include "executor/insight/kept_runs.h"
#include "executor/insight/nan_watch.h"
#include "lazy/operator.h"
#include "ops/registry.h"
#include "python/init.h"
#include "python/ivalue.h"

namespace py = pybind11;
using py::literals::operator""_a;

namespace torch_xla::python {
namespace {

using executor::KeptRun;
using executor::RunReplay;

at::Tensor on_meta(const lazy::Geometry& g) {
  return at::empty_strided(g.sizes, g.strides, at::TensorOptions(g.dtype).device(at::kMeta));
}

dispatch::Tensors operands_on_meta(const lazy::Signature& s) {
  dispatch::Tensors operands;
  if (ops::is_constant(*s.op)) return operands;
  for (const lazy::OperandInfo& o : s.operands) {
    if (o.number < 0) operands.push_back(on_meta(*o.geometry));
  }
  return operands;
}

// Result `k` of call `i` as (i, k); parameter `p` as (-1 - p, 0).
std::vector<std::pair<int64_t, uint32_t>> places_of(const lazy::Function& function,
                                                    std::span<const lazy::Ref> values) {
  std::vector<std::pair<int64_t, uint32_t>> places;
  for (const lazy::Ref& r : values) {
    const int64_t place = function.is_parameter(r) ? -1 - int64_t{r.index}
                                                   : static_cast<int64_t>(function.call_of(r));
    places.emplace_back(place, r.result);
  }
  return places;
}

py::list results_on_meta(const lazy::Signature& s) {
  py::list results;
  for (const lazy::Geometry* g : s.outputs) {
    results.append(g == nullptr ? py::none() : py::cast(on_meta(*g)));
  }
  return results;
}

py::dict describe(const KeptRun& run) {
  py::list calls;
  for (const lazy::Function::Call& call : run.function.calls) {
    const lazy::Signature& s = *call.signature;
    py::list frames;
    for (const lazy::SourceFrame& f : call.source.frames()) frames.append(f.str());
    calls.append(py::dict("operator"_a = s.op->name, "frames"_a = frames,
                          "scope"_a = lazy::scope_name(call.source.scope),
                          "places"_a = places_of(run.function, run.function.operands_of(call)),
                          "operands"_a = operands_on_meta(s), "results"_a = results_on_meta(s),
                          "random"_a = s.num_seeds > 0));
  }
  return py::dict("name"_a = run.name, "place"_a = run.place, "graph"_a = run.key.hex(),
                  "device"_a = run.device, "calls"_a = calls,
                  "results"_a = places_of(run.function, run.function.results),
                  "parameters"_a = run.inputs.size());
}

// The calls that a call stands for, each with its operator and arguments: itself, or those of its
// expansion. Tensors are on the device meta.
void add_parts(const lazy::Function& function, const lazy::Function::Call& call, py::list& parts) {
  const lazy::Signature& s = *call.signature;
  if (s.expansion != nullptr) {
    for (const lazy::Function::Call& part : s.expansion->calls) {
      add_parts(*s.expansion, part, parts);
    }
    return;
  }
  py::list arguments;
  for (const c10::IValue& v :
       dispatch::arguments_of(s, function.numbers_of(call), operands_on_meta(s), at::kMeta)) {
    arguments.append(object_of(v));
  }
  parts.append(py::make_tuple(s.op->name, arguments, results_on_meta(s)));
}

// executor::Examining, as a context.
struct Examining {
  std::optional<executor::Examining> now;
  void enter() { now.emplace(); }
  void exit() { now.reset(); }
};

// Those that the collector of garbage knows of these classes. Nothing of Python runs meanwhile: a
// thread that is making a tuple must not find it shared.
py::list objects_of(const py::tuple& classes) {
  py::list found;
  const py::object all = py::module_::import("gc").attr("get_objects")();
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(all.ptr()); ++i) {
    PyObject* object = PyList_GET_ITEM(all.ptr(), i);
    for (const py::handle one : classes) {
      if (PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(one.ptr())) == 0)
        continue;
      found.append(py::handle(object));
      break;
    }
  }
  return found;
}

}  // namespace

void init_kept_runs(py::module_& m) {
  py::class_<KeptRun, std::shared_ptr<KeptRun>>(m, "_KeptRun")
      .def("describe", &describe)
      .def("parts", [](const KeptRun& run, size_t call) {
        py::list parts;
        add_parts(run.function, run.function.calls.at(call), parts);
        return parts;
      });
  const auto released = py::call_guard<py::gil_scoped_release>();
  py::class_<RunReplay>(m, "_RunReplay")
      .def(py::init(
          [](const std::shared_ptr<KeptRun>& run) { return std::make_unique<RunReplay>(run); }))
      .def("compute", &RunReplay::compute, py::arg("calls"), py::arg("seconds") = 0.0,
           py::arg("all_results") = false, released)
      .def("results", &RunReplay::results, released)
      .def("operands", &RunReplay::operands, released)
      .def(
          "on_cpu",
          [](const RunReplay& replay, size_t call, const dispatch::Tensors& operands) {
            return dispatch::call_on_cpu(replay.run().function, call, operands);
          },
          released);
  m.def("_xla_keep_runs", &executor::keep_runs, released);
  m.def("_xla_kept_runs", [] {
    std::vector<std::shared_ptr<KeptRun>> runs;
    for (const auto& run : executor::kept_runs()) {
      runs.push_back(std::const_pointer_cast<KeptRun>(run));
    }
    return runs;
  });
  m.def("_xla_objects_of", &objects_of);
  py::class_<Examining>(m, "_Examining")
      .def(py::init())
      .def("__enter__", &Examining::enter)
      .def("__exit__", [](Examining& self, const py::args&) { self.exit(); });
  m.attr("_EXAMINED") = std::string(executor::kExamined.of_run);  // a cause of barriers
  m.def("_xla_set_scope", &lazy::set_scope);
  // The functions live as long as the process: threads of C++ may call them at its end.
  m.def("_xla_set_nan_handler", [](py::function handler) {
    executor::set_nan_handler(
        [kept = new py::function(std::move(handler))](std::shared_ptr<const KeptRun> run) {
          const py::gil_scoped_acquire gil;
          (*kept)(std::const_pointer_cast<KeptRun>(run));
        });
  });
}

}  // namespace torch_xla::python
