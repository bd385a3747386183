#include "executor/step/stablehlo.h"

#include <algorithm>
#include <utility>

#include "executor/run/array_types.h"
#include "executor/run/in_flight.h"
#include "executor/run/live_data.h"
#include "executor/run/run.h"
#include "executor/run/runtime.h"
#include "executor/run/transfer.h"
#include "executor/step/read.h"
#include "executor/step/sync.h"
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
  program->reuses_buffers =
      std::ranges::any_of(program->interface.parameters,
                          [](const Parameter& parameter) { return parameter.reused_by >= 0; });
  const pjrt::CompileOptions options = compile_options_of(device);
  try {
    const util::Unlocked unlocked;
    program->executables.push_back(
        pjrt::Executable::compile(Runtime::get().client(), stablehlo, options));
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
  const PackedNumbers no_numbers;
  Run run{.program = program, .numbers = no_numbers, .device = device};
  for (const lazy::Value& argument : arguments) {
    const lazy::DeviceData& data = argument.node->data();
    run.inputs.push_back(&data.array);
    run.is_shared.push_back(!data.donatable || data.array.use_count() != 1 ||
                            argument.node.use_count() != 2);
  }
  lazy::Source place;
  lazy::take_source(place);
  Launched launched;
  try {
    launched = launch(run);
  } catch (const pjrt::Error& e) {
    fail_launch(run, e, place.str());
  }
  InFlight::of(device).add(
      {std::move(launched.done), std::move(place), std::move(launched.taken_over)});
  std::vector<lazy::Value> results;
  for (const auto& array : launched.results) {
    const lazy::Geometry* g = lazy::intern_contiguous(held_dtype(*array), array->dims());
    results.push_back(data_value(g, device, counted(std::move(*array), device)));
  }
  return results;
}

}  // namespace torch_xla::executor
