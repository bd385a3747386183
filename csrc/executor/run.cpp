#include "executor/run.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "debug/trace.h"
#include "executor/donation.h"
#include "executor/live_data.h"
#include "executor/runtime.h"
#include "executor/transfer.h"
#include "util/error.h"

namespace torch_xla::executor {
namespace {

// What a program asks of the memory of a device, where the plugin tells.
std::string memory_needs(const Program& program) {
  int64_t arguments = 0, results = 0, temporaries = 0;
  for (const auto& executable : program.executables) {
    const auto stats = executable->memory_stats();
    if (!stats) return "";
    arguments = std::max(arguments, stats->argument_bytes);
    results = std::max(results, stats->output_bytes - stats->alias_bytes);
    temporaries = std::max(temporaries, stats->temp_bytes);
  }
  return "\nThe program \"" + program.name + "\"" +
         (program.place.empty() ? "" : " of " + program.place) + " reads " + size_text(arguments) +
         " and needs " + size_text(results) + " for results and " + size_text(temporaries) +
         " for what it computes on the way" +
         (program.plan ? ", in the largest of its pieces." : ".");
}

// Adds the run to a profile, as an event of each device that ends when the device has finished. It
// begins when the run before it has ended.
void trace(const Program& program, const std::vector<pjrt::Event>& done, int device) {
  if (!debug::is_tracing()) return;
  const int64_t launched = debug::now_ns();
  for (const pjrt::Event& event : done) {
    debug::Event run{program.name + " " + program.key.hex().substr(0, 8), launched, 0, {}};
    run.details = {{"graph", program.key.hex()}, {"line", program.place}};
    debug::expect_device_event();
    event.on_ready([run = std::move(run), device](std::exception_ptr) mutable {
      run.end = debug::now_ns();
      debug::add_device_event(device, std::move(run));
    });
  }
}

}  // namespace

Launched launch(const Run& run, bool keeps_inputs) {
  const std::vector<pjrt::Device>& devices = Runtime::get().devices(run.device);
  std::vector<const pjrt::Array*> arrays;
  arrays.reserve(run.inputs.size() + 2);  // the program's launch adds the numbers
  const bool poisons = donation_check() == DonationCheck::Poison;
  StandIns stand_ins(run.device);
  Launched launched;
  std::vector<int64_t> kept;
  pjrt::Executable::ArrayResult result;
  try {
    for (size_t i = 0; i < run.inputs.size(); ++i) {
      const std::shared_ptr<pjrt::Array>& array = *run.inputs[i];
      send(*array, devices);
      arrays.push_back(array.get());
      if (!run.takes_over(i)) continue;
      if (keeps_inputs) {
        kept.push_back(static_cast<int64_t>(i));
        continue;
      }
      launched.taken_over.push_back(array);
      if (poisons) arrays.back() = stand_ins.of(array);
    }
    result = launch(run.program, std::move(arrays), run.numbers, devices, kept);
  } catch (const pjrt::Error&) {
    stand_ins.poison_taken(launched.taken_over);
    throw;
  }
  stand_ins.poison_taken(launched.taken_over);
  trace(run.program, result.done, run.device);
  launched.results = std::move(result.outputs);
  launched.done = std::move(result.done);
  return launched;
}

void fail_launch(const Run& run, const pjrt::Error& error, const std::string& context) {
  for (const auto* input : run.inputs) {
    if (const std::string* why = (*input)->loss()) {
      util::fail(
          util::ErrorKind::Runtime,
          "expected the values that this step reads, got one that was lost when the run that "
          "was to overwrite it failed (",
          *why, "). Assign the tensor anew, or load it from a checkpoint.");
    }
  }
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    pjrt::Array& array = **run.inputs[i];
    if (run.reused_by[i] >= 0 && array.is_deleted()) array.set_loss(error.what());
  }
  const bool no_memory = error.code() == PJRT_Error_Code_RESOURCE_EXHAUSTED;
  fail(error, (no_memory ? memory_needs(run.program) : "") + context);
}

}  // namespace torch_xla::executor
