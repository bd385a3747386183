// Why programs were compiled again, and where the user's program waited.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "executor/recompiles.h"
#include "executor/waits.h"
#include "python/init.h"

namespace py = pybind11;
using py::literals::operator""_a;

namespace torch_xla::python {
namespace {

std::vector<py::dict> recompiles(bool clear) {
  std::vector<py::dict> all;
  for (const executor::Recompile& r : executor::recompiles(clear)) {
    all.push_back(py::dict("number"_a = r.number, "name"_a = r.name, "place"_a = r.place,
                           "seconds"_a = r.seconds, "key"_a = r.key,
                           "earlier_key"_a = r.earlier_key, "kind"_a = r.kind, "what"_a = r.what,
                           "line"_a = r.line, "earlier_line"_a = r.earlier_line,
                           "advice"_a = r.advice, "text"_a = r.str()));
  }
  return all;
}

std::vector<py::dict> waits(bool clear) {
  std::vector<py::dict> all;
  for (const executor::Wait& w : executor::waits(clear)) {
    all.push_back(py::dict("place"_a = w.place, "why"_a = w.why, "count"_a = w.count,
                           "seconds"_a = w.seconds));
  }
  return all;
}

}  // namespace

void init_explain(py::module_& m) {
  m.def("_xla_recompiles", &recompiles, py::arg("clear") = false);
  m.def("_xla_waits", &waits, py::arg("clear") = false);
}

}  // namespace torch_xla::python
