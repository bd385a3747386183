#include "executor/stablehlo.h"

#include <utility>

#include "executor/compile.h"
#include "executor/in_flight.h"
#include "executor/live_data.h"
#include "executor/runtime.h"
#include "executor/sync.h"
#include "executor/transfer.h"
#include "lazy/source.h"
#include "util/error.h"
#include "util/unlocked.h"

namespace torch_xla::executor {

std::shared_ptr<const Program> compile_stablehlo(std::string name, const std::string& stablehlo,
                                                 std::vector<Parameter> takes, int device) {
  require_device(device);
  auto program = std::make_shared<Program>();
  program->name = std::move(name);
  program->interface.parameters = std::move(takes);
  const pjrt::CompileOptions options = compile_options_of(device);
  try {
    const util::Unlocked unlocked;
    program->executables.push_back(Runtime::get().client().compile(stablehlo, options));
  } catch (const pjrt::Error& e) {
    fail(e);
  }
  return program;
}

std::vector<lazy::Value> run_stablehlo(const Program& program, std::vector<lazy::Value> arguments,
                                       int device) {
  materialize(arguments, device);
  for (lazy::Value& argument : arguments) {  // the text says of none that it is split
    if (sharding_of(argument) != nullptr) argument = reshard(argument, device, nullptr);
  }
  const lazy::GraphLock lock;
  const std::vector<pjrt::Device>& devices = Runtime::get().devices(device);
  std::vector<const pjrt::Array*> arrays;
  std::vector<int64_t> kept;
  InFlight::Arrays taken_over;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const lazy::DeviceData& data = arguments[i].node->data();
    send(*data.array, devices);
    arrays.push_back(data.array.get());
    if (program.interface.parameters.at(i).reused_by < 0) continue;
    if (data.donatable && data.array.use_count() == 1 && arguments[i].node.use_count() == 2) {
      taken_over.push_back(data.array);
    } else {
      kept.push_back(static_cast<int64_t>(i));
    }
  }
  std::vector<lazy::Value> results;
  try {
    auto launched = launch(program, std::move(arrays), {}, device, false, kept);
    InFlight::of(device).add(
        {std::move(launched.done), lazy::source_line(), std::move(taken_over)});
    for (auto& array : launched.outputs) {
      const lazy::Geometry* g = lazy::intern_contiguous(held_dtype(*array), array->dims());
      results.push_back(data_value(g, device, counted(std::move(*array), device)));
    }
  } catch (const pjrt::Error& e) {
    fail(e);
  }
  return results;
}

}  // namespace torch_xla::executor
