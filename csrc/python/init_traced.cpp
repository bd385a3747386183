// Functions that Python code was traced into: torch_xla._dynamo.dynamo_bridge builds on them.
#include <memory>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch/functions/traced_function.h"
#include "python/init.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using dispatch::Launching;
using dispatch::StepPart;
using dispatch::Tensors;
using dispatch::TracedFunction;

bool equal(const py::object& a, const py::object& b) {
  return a.is(b) || (Py_TYPE(a.ptr()) == Py_TYPE(b.ptr()) && a.equal(b));
}

// Arguments or results, the tensors apart.
struct Split {
  explicit Split(const py::handle& values) {
    for (const py::handle value : values) {
      const bool is_tensor = THPVariable_Check(value.ptr());
      if (is_tensor) tensors.push_back(THPVariable_Unpack(value.ptr()));
      others.push_back(is_tensor ? py::object() : py::reinterpret_borrow<py::object>(value));
    }
  }

  Tensors tensors;
  std::vector<py::object> others;  // null where there is a tensor
};

// `others` with these tensors in the empty places.
py::tuple joined(const std::vector<py::object>& others, const Tensors& tensors) {
  py::tuple all(others.size());
  size_t next = 0;
  for (size_t i = 0; i < others.size(); ++i) {
    all[i] = others[i] ? others[i] : py::cast(tensors[next++]);
  }
  return all;
}

// The versions of one Python function, one for each set of geometries and of arguments that are not
// tensors.
class TracedFunctions {
 public:
  explicit TracedFunctions(StepPart part) : launching_(part) {}

  // Returns the results of a call, or None where no version fits.
  py::object call(const py::args& args) {
    const Split given(args);
    // By position, and held: where a comparison or a launch lets the GIL go, others add versions.
    for (size_t i = 0; i < versions_.size(); ++i) {
      const std::shared_ptr<const Version> version = versions_[i];
      if (!version->fits(given)) continue;
      return joined(version->constants, version->function->call(given.tensors, launching_));
    }
    return py::none();
  }

  // Traces `body(*args)`, which returns a flat list or tuple.
  void trace(const py::function& body, const py::args& args) {
    const Split given(args);
    const auto version = std::make_shared<Version>();
    version->others = given.others;
    version->function = TracedFunction::trace(given.tensors, [&](const Tensors& stand_ins) {
      Split results(body(*joined(given.others, stand_ins)));
      version->constants = std::move(results.others);
      return std::move(results.tensors);
    });
    versions_.push_back(version);
  }

  size_t size() const { return versions_.size(); }
  std::vector<std::string> keys() const {
    std::vector<std::string> all;
    for (const auto& version : versions_) all.push_back(version->function->key());
    return all;
  }

 private:
  struct Version {
    std::vector<py::object> others;
    std::unique_ptr<TracedFunction> function;
    std::vector<py::object> constants;  // results; null where there is a tensor

    bool fits(const Split& given) const {
      if (given.others.size() != others.size()) return false;
      for (size_t i = 0; i < others.size(); ++i) {
        if (static_cast<bool>(others[i]) != static_cast<bool>(given.others[i])) return false;
        if (others[i] && !equal(others[i], given.others[i])) return false;
      }
      return function->fits(given.tensors);
    }
  };

  Launching launching_;
  std::vector<std::shared_ptr<const Version>> versions_;
};

}  // namespace

void init_traced(py::module_& m) {
  py::enum_<StepPart>(m, "_StepPart", "What a graph is of a training step.")
      .value("NONE", StepPart::None)
      .value("FORWARD", StepPart::Forward)
      .value("BACKWARD", StepPart::Backward);
  py::class_<TracedFunctions>(m, "_TracedFunctions")
      .def(py::init<StepPart>(), py::arg("part") = StepPart::None)
      .def("keys", &TracedFunctions::keys)
      .def("call", &TracedFunctions::call)
      .def("trace", &TracedFunctions::trace)
      .def("__len__", &TracedFunctions::size);
}

}  // namespace torch_xla::python
