#include "executor/stablehlo.h"

#include <utility>

#include "executor/compile.h"
#include "executor/in_flight.h"
#include "executor/runtime.h"
#include "executor/sync.h"
#include "executor/transfer.h"
#include "lazy/source.h"
#include "ops/dtypes.h"
#include "util/error.h"
#include "util/unlocked.h"

namespace torch_xla::executor {

std::shared_ptr<const Program> compile_stablehlo(std::string name, const std::string& stablehlo,
                                                 const std::vector<const lazy::Geometry*>& takes,
                                                 int device) {
  require_device(device);
  auto program = std::make_shared<Program>();
  program->name = std::move(name);
  for (const lazy::Geometry* g : takes) {
    program->interface.parameters.push_back({g, ops::device_dtype(g->dtype)});
  }
  const pjrt::CompileOptions options = compile_options_of(device);
  try {
    const util::Unlocked unlocked;
    program->executable = Runtime::get().client().compile(stablehlo, options);
  } catch (const pjrt::Error& e) {
    fail(e);
  }
  return program;
}

std::vector<lazy::Value> run_stablehlo(const Program& program, std::vector<lazy::Value> arguments,
                                       int device) {
  materialize(arguments, device);
  const lazy::GraphLock lock;
  const std::vector<pjrt::Device>& devices = Runtime::get().devices(device);
  std::vector<const pjrt::Array*> arrays;
  for (const lazy::Value& argument : arguments) {
    const std::shared_ptr<pjrt::Array>& array = argument.node->data().array;
    array->extend_to(devices);
    arrays.push_back(array.get());
  }
  std::vector<lazy::Value> results;
  try {
    auto launched = launch(program, std::move(arrays), {}, devices);
    InFlight::of(device).add(std::move(launched.done), lazy::source_line(), {});
    for (auto& array : launched.outputs) {
      const lazy::Geometry* g = lazy::intern_contiguous(held_dtype(*array), array->dims());
      results.push_back(data_value(g, device, counted(std::move(array))));
    }
  } catch (const pjrt::Error& e) {
    fail(e);
  }
  return results;
}

}  // namespace torch_xla::executor
