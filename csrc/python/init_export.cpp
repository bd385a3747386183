// Programs for others, and from others: torch_xla.stablehlo builds on these.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include "dispatch/record/exported_function.h"
#include "executor/lower.h"
#include "executor/runtime.h"
#include "executor/stablehlo.h"
#include "executor/sync.h"
#include "hlo/dynamic.h"
#include "lazy/lock.h"
#include "lazy/source.h"
#include "lazy/tensor.h"
#include "python/init.h"
#include "python/values.h"

namespace py = pybind11;

namespace torch_xla::python {
namespace {

using Tensors = std::vector<at::Tensor>;
using Frames = std::vector<std::tuple<std::string, int, std::string>>;

// Of what computes these tensors, or all that waits on the current device.
std::string portable_stablehlo(const Tensors& tensors) {
  int device = executor::current_device();
  const lazy::GraphLock lock;
  return executor::portable_stablehlo_of(values_or_pending(tensors, "get_stablehlo", &device),
                                         device);
}

py::tuple export_function(const Tensors& like, const std::vector<size_t>& kept,
                          const py::function& body, bool with_locations, bool dynamic_sizes) {
  const dispatch::Exported exported = dispatch::export_function(
      like, kept, [&](const Tensors& stand_ins) { return body(stand_ins).cast<Tensors>(); },
      with_locations, dynamic_sizes);
  return py::make_tuple(exported.text, exported.arguments, exported.written);
}

// `programs` are pairs of sizes and text.
std::string dynamic_program(
    const std::vector<std::pair<std::vector<int64_t>, std::string>>& programs,
    bool with_locations) {
  std::vector<hlo::SizedProgram> sized;
  for (const auto& [sizes, text] : programs) sized.push_back({sizes, text});
  return hlo::dynamic_program(sized, with_locations);
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
  // `like` has the dtypes and sizes of its arguments.
  LoadedProgram(const py::bytes& stablehlo, const Tensors& like, const std::string& name,
                const std::string& device)
      : device_(device_index(device)) {
    std::vector<const lazy::Geometry*> takes;
    for (const at::Tensor& t : like) {
      takes.push_back(lazy::intern_contiguous(t.scalar_type(), t.sizes()));
    }
    program_ = executor::compile_stablehlo(name, stablehlo, takes, device_);
  }

  Tensors call(const Tensors& arguments) const {
    int device = device_;
    Tensors results;
    for (lazy::Value& value :
         executor::run_stablehlo(*program_, values_of(arguments, "stablehlo", &device), device_)) {
      const lazy::Geometry* geometry = &value.geometry();
      results.push_back(lazy::make_tensor(std::move(value), geometry, device_));
    }
    return results;
  }

 private:
  int device_;
  std::shared_ptr<const executor::Program> program_;
};

}  // namespace

void init_export(py::module_& m) {
  m.def("_get_portable_stablehlo", &portable_stablehlo);
  m.def("_export_function", &export_function);
  m.def("_dynamic_program", &dynamic_program);
  m.def("_set_place", &set_place);
  py::class_<LoadedProgram>(m, "_LoadedProgram")
      .def(py::init<const py::bytes&, const Tensors&, const std::string&, const std::string&>())
      .def("__call__", &LoadedProgram::call);
}

}  // namespace torch_xla::python
