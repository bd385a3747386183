// Registers the kernels and lends Python what recording asks of it: decompositions, source lines.
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch/coverage.h"
#include "dispatch/record/context.h"
#include "dispatch/record/decompose.h"
#include "dispatch/register.h"
#include "ops/registry.h"
#include "python/init.h"
#include "python/ivalue.h"
#include "python/plain_frames.h"
#include "util/hooks.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

py::object decomposition_module() { return py::module_::import("torch_xla._src.decompositions"); }

bool has_decomposition(const c10::OperatorHandle& op) {
  const py::gil_scoped_acquire gil;
  const PlainFrames frames;
  return decomposition_module()
      .attr("has")(op.schema().name(), op.schema().overload_name())
      .cast<bool>();
}

void decompose(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const py::gil_scoped_acquire gil;
  const PlainFrames frames;
  const auto& arguments = op.schema().arguments();
  const size_t base = stack->size() - arguments.size();
  py::list positional;
  py::dict keyword;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& v = (*stack)[base + i];
    py::object value = object_of(v);
    if (arguments[i].kwarg_only()) {
      keyword[arguments[i].name().c_str()] = std::move(value);
    } else {
      positional.append(std::move(value));
    }
  }
  const py::object results = decomposition_module().attr("run")(
      op.schema().name(), op.schema().overload_name(), positional, keyword);
  torch::jit::drop(*stack, arguments.size());
  const auto& returns = op.schema().returns();
  if (returns.size() == 1) {
    stack->push_back(ivalue_of(results, returns[0].type()));
    return;
  }
  size_t i = 0;
  for (const py::handle result : results.cast<py::sequence>()) {
    stack->push_back(result.is_none() ? c10::IValue(at::Tensor())
                                      : ivalue_of(result, returns.at(i).type()));
    ++i;
  }
}

}  // namespace

void init_dispatch(py::module_& m) {
  util::hooks.has_decomposition = &has_decomposition;
  util::hooks.decompose = &decompose;
  dispatch::refresh_debug_flags();
  dispatch::register_kernels();
  m.def("_xla_check_rules", &dispatch::check_rules);
  m.def("_xla_lowered_ops", [] { return ops::Registry::get().names(); });
  m.def("_xla_how_it_runs", [](const std::string& name, const std::string& overload) {
    return std::string(dispatch::how_it_runs(
        c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str())));
  });
}

}  // namespace torch_xla::python
