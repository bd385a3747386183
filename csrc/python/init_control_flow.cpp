// Control flow: what torch_xla/_src/control_flow.py builds on. Bodies take and give lists of
// tensors.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch/record/control_flow.h"
#include "python/init.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using dispatch::Tensors;

// A Python function as a body. It is called with the GraphLock and with Python's lock.
auto body_of(const py::function& function) {
  return [&function](const Tensors& arguments) {
    return py::cast<Tensors>(function(*py::tuple(py::cast(arguments))));
  };
}

}  // namespace

void init_control_flow(py::module_& m) {
  m.def(
      "_while_loop",
      [](const py::function& condition, const py::function& body, const Tensors& carried) {
        return dispatch::while_loop(body_of(condition), body_of(body), carried);
      },
      py::arg("condition"), py::arg("body"), py::arg("carried"));
  m.def(
      "_cond",
      [](const at::Tensor& predicate, const py::function& on_true, const py::function& on_false) {
        return dispatch::cond(predicate, body_of(on_true), body_of(on_false));
      },
      py::arg("predicate"), py::arg("on_true"), py::arg("on_false"));
  m.def(
      "_scan",
      [](const py::function& combine, const Tensors& init, const Tensors& xs, bool reverse) {
        return dispatch::scan(body_of(combine), init, xs, reverse);
      },
      py::arg("combine"), py::arg("init"), py::arg("xs"), py::arg("reverse") = false);
}

}  // namespace torch_xla::python
