// Programs for others, and from others: torch_xla.stablehlo and torch_xla.saved_step
// build on these.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch/functions/exported_function.h"
#include "dispatch/functions/recorded_step.h"
#include "executor/program/lower.h"
#include "executor/program/program.h"
#include "executor/run/runtime.h"
#include "executor/step/stablehlo.h"
#include "executor/step/sync.h"
#include "hlo/dynamic.h"
#include "hlo/pretty.h"
#include "lazy/lock.h"
#include "lazy/source.h"
#include "lazy/tensor.h"
#include "ops/dtypes.h"
#include "ops/target.h"
#include "pjrt/executable.h"
#include "python/init.h"
#include "python/program_data.h"
#include "python/values.h"
#include "spmd/compiled_module.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using Tensors = std::vector<at::Tensor>;
using Frames = std::vector<std::tuple<std::string, int, std::string>>;

// The program that computes these tensors, or all that waits on the current device.
std::string portable_stablehlo(const Tensors& tensors) {
  int device = executor::current_device();
  const lazy::GraphLock lock;
  return hlo::pretty(
      executor::portable_stablehlo_of(values_or_pending(tensors, "get_stablehlo", &device), device),
      true);
}

py::tuple export_function(const Tensors& like, const std::vector<size_t>& kept,
                          const py::function& body, bool with_locations, bool dynamic_sizes) {
  const dispatch::ExportedFunction exported = dispatch::export_function(
      like, kept, [&](const Tensors& stand_ins) { return body(stand_ins).cast<Tensors>(); },
      with_locations, dynamic_sizes);
  // Programs of several sizes become one before anyone reads them.
  const std::string text = dynamic_sizes ? exported.text : hlo::pretty(exported.text);
  return py::make_tuple(text, exported.arguments, exported.written);
}

py::tuple record_step(const Tensors& arguments, const py::function& body,
                      const std::string& platform, const std::vector<std::string>& shardings) {
  std::vector<const spmd::Sharding*> given;
  for (const std::string& text : shardings) {
    given.push_back(text.empty() ? nullptr : spmd::Sharding::read(text));
  }
  const dispatch::RecordedStep step = dispatch::record_step(
      arguments, [&](const Tensors& stand_ins) { return body(stand_ins).cast<Tensors>(); },
      platform, std::move(given));
  return py::make_tuple(step.text, step.states, step.written, step.draws);
}

// `programs` are pairs of sizes and text.
std::string dynamic_program(
    const std::vector<std::pair<std::vector<int64_t>, std::string>>& programs,
    bool with_locations) {
  std::vector<hlo::SizedProgram> sized;
  for (const auto& [sizes, text] : programs) sized.push_back({sizes, text});
  return hlo::pretty(hlo::dynamic_program(sized, with_locations));
}

// Innermost first: file, line, function.
void set_place(const Frames& given) {
  lazy::SourceFrames frames;
  for (const auto& [file, line, function] : given) frames.push_back({file, line, function});
  const lazy::GraphLock lock;
  lazy::set_place(frames.empty()
                      ? lazy::Source()
                      : lazy::Source{c10::make_intrusive<lazy::Stack>(std::move(frames)), 0});
}

class LoadedProgram {
 public:
  // `like` has the dtypes and sizes of its arguments. `written_by` names, of each, the result that
  // the program makes its new value, or -1; empty: it writes none.
  LoadedProgram(const py::bytes& stablehlo, const Tensors& like, const std::string& name,
                const std::string& device, std::vector<int32_t> written_by)
      : device_(device_index(device)), written_by_(std::move(written_by)) {
    std::vector<executor::Parameter> takes;
    written_by_.resize(like.size(), -1);
    for (size_t i = 0; i < like.size(); ++i) {
      const lazy::Geometry* g = lazy::intern_contiguous(like[i].scalar_type(), like[i].sizes());
      takes.push_back({g, ops::device_dtype(g->dtype), written_by_[i]});
    }
    program_ = executor::compile_stablehlo(name, stablehlo, std::move(takes), device_);
  }

  // As StableHLO writes them; empty where the plugin does not tell.
  std::vector<std::string> argument_types() const {
    const pjrt::OptimizedModule module = program_->executables[0]->optimized_module();
    return spmd::read_argument_types(module.bytes, module.with_config());
  }

  // Returns the results that are no argument's new value; those arguments, which share no storage,
  // have it then.
  Tensors call(const Tensors& arguments) const {
    int device = device_;
    std::vector<lazy::Value> values = executor::run_stablehlo(
        *program_, present_values(arguments, "stablehlo", &device), device_);
    const lazy::GraphLock lock;
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (written_by_[i] < 0) continue;
      lazy::as_lazy(arguments[i])
          ->lazy_storage()
          .set_value(std::exchange(values.at(written_by_[i]), {}));
    }
    Tensors results;
    for (lazy::Value& value : values) {
      if (!value) continue;
      const lazy::Geometry* geometry = &value.geometry();
      results.push_back(lazy::make_tensor(std::move(value), geometry, device_));
    }
    return results;
  }

 private:
  int device_;
  std::vector<int32_t> written_by_;
  std::shared_ptr<const executor::Program> program_;
};

}  // namespace

void init_export(py::module_& m) {
  m.def("_get_portable_stablehlo", &portable_stablehlo);
  m.def("_read_program", &read_program);
  m.def("_pretty_stablehlo", &hlo::pretty, py::arg("program"), py::arg("folds_numbers") = false);
  m.def("_export_function", &export_function);
  m.def("_record_step", &record_step, py::arg("arguments"), py::arg("body"),
        py::arg("platform") = std::string(ops::kPortable),
        py::arg("shardings") = std::vector<std::string>());
  m.def("_rehearse_step", [](const Tensors& arguments, const py::function& body) {
    dispatch::rehearse_step(
        arguments, [&](const Tensors& stand_ins) { return body(stand_ins).cast<Tensors>(); });
  });
  // The name that PJRT gives the platform, and the flags that programs are compiled with there.
  m.def("_compile_options", [] {
    executor::Runtime& runtime = executor::Runtime::get();
    return py::make_tuple(runtime.client().platform_name(), runtime.compile_options());
  });
  m.def("_dynamic_program", &dynamic_program);
  m.def("_set_place", &set_place);
  py::class_<LoadedProgram>(m, "_LoadedProgram")
      .def(py::init<const py::bytes&, const Tensors&, const std::string&, const std::string&,
                    std::vector<int32_t>>(),
           py::arg("stablehlo"), py::arg("like"), py::arg("name"), py::arg("device"),
           py::arg("written_by") = std::vector<int32_t>())
      .def("argument_types", &LoadedProgram::argument_types)
      .def("__call__", &LoadedProgram::call);
}

}  // namespace torch_xla::python
