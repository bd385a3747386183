// Control flow: torch_xla/_src/functions/control_flow.py builds on these. Bodies take and give
// lists of tensors.
#include <memory>
#include <utility>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch/functions/control_flow.h"
#include "dispatch/functions/joint.h"
#include "python/init.h"
#include "python/plain_frames.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using dispatch::Joint;
using dispatch::Tensors;

// A Python function as a body. It is called with the GraphLock and with Python's lock.
auto body_of(const py::function& function) {
  return [&function](const Tensors& arguments) {
    const PlainFrames frames;
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

  py::class_<Joint>(m, "_Joint")
      .def(py::init([](const Tensors& inputs, const py::function& forward,
                       const py::function& backward, bool recomputes) {
             const auto run_backward = [&](const Tensors& captured, const Tensors& gradients) {
               const PlainFrames frames;
               return py::cast<Tensors>(backward(captured, gradients));
             };
             return std::make_unique<Joint>(inputs, body_of(forward), run_backward, recomputes);
           }),
           py::arg("inputs"), py::arg("forward"), py::arg("backward"), py::arg("recomputes"))
      .def("captured", &Joint::captured)
      .def("forward", &Joint::forward, py::arg("inputs"))
      .def("backward", &Joint::backward, py::arg("kept_and_gradients"))
      // (is it an input, its position) of each value that the backward pass takes first
      .def("kept", [](const Joint& joint) {
        std::vector<std::pair<bool, size_t>> all;
        for (const Joint::Residual& r : joint.residuals()) all.emplace_back(r.is_input, r.index);
        return all;
      });
}

}  // namespace torch_xla::python
