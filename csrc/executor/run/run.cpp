#include "executor/run/run.h"

#include <algorithm>
#include <exception>
#include <fstream>
#include <optional>
#include <utility>

#include <unistd.h>

#include "debug/metrics.h"
#include "debug/trace.h"
#include "executor/run/donation.h"
#include "executor/run/launch.h"
#include "executor/run/live_data.h"
#include "executor/run/runtime.h"
#include "executor/run/transfer.h"
#include "util/error.h"

namespace torch_xla::executor {
namespace {

std::string memory_needs(const Program& program) {
  const std::optional<MemoryNeeds>& needs = program.needs;
  if (!needs) return "";
  return "\nThe program \"" + program.name + "\"" +
         (program.place.empty() ? "" : " of " + program.place) + " reads " +
         size_text(needs->arguments) + " and needs " + size_text(needs->results) +
         " for results and " + size_text(needs->temporaries) + " for what it computes on the way" +
         (program.plan ? ", in the largest of its pieces." : ".");
}

// The memory of the machine, or as much of it as the control groups of this process may have.
int64_t host_memory() {
  int64_t most = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
  const auto limit_by = [&](const std::string& path) {
    int64_t limit = 0;
    if (std::ifstream(path) >> limit && limit > 0) most = std::min(most, limit);  // else "max"
  };
  limit_by("/sys/fs/cgroup/memory/memory.limit_in_bytes");  // of version 1
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    for (std::string group = line.substr(3); !group.empty();
         group.resize(group.rfind('/') == group.npos ? 0 : group.rfind('/'))) {
      limit_by("/sys/fs/cgroup" + group + "/memory.max");
    }
  }
  limit_by("/sys/fs/cgroup/memory.max");
  return most;
}

// The bytes of a device's memory, where the plugin tells; on the CPU, of what this process may
// have.
std::optional<int64_t> device_memory() {
  static const std::optional<int64_t> found = [] {
    Runtime& runtime = Runtime::get();
    std::optional<int64_t> least;
    if (runtime.device_type() == "CPU") least = host_memory();
    for (const pjrt::Device& device : runtime.client().addressable_devices()) {
      const auto stats = device.memory_stats();
      if (!stats || !stats->bytes_limit) continue;
      least = least ? std::min(*least, *stats->bytes_limit) : *stats->bytes_limit;
    }
    return least;
  }();
  return found;
}

// Throws for what cannot fit, before it takes anything over. Returns whether there is memory for a
// run that keeps all of its inputs.
bool check_memory(const Program& program, int device) {
  const Runtime& runtime = Runtime::get();
  const std::optional<int64_t> all = device_memory();
  if (!all || !program.needs) return false;
  // On the CPU all devices have one memory.
  const int64_t runs = runtime.device_type() == "CPU" ? runtime.devices(device).mine.size() : 1;
  const int64_t more = program.needs->more() * runs, most = more + program.needs->reused * runs;
  constexpr int64_t kSmall = 64;  // part of the memory: what needs less is not worth a look
  if (most < *all / kSmall) return true;
  const int64_t alive = live_bytes(device);
  if (more > *all - alive) {
    throw pjrt::Error("launch", PJRT_Error_Code_RESOURCE_EXHAUSTED,
                      "Out of memory: expected a run that fits beside the " + size_text(alive) +
                          " of what is alive, into " + size_text(*all) + ", got one that needs " +
                          size_text(more) + ".");
  }
  return most <= (*all - alive) / 2;
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

const debug::OftenTimed& wrapping_time() {
  static const debug::OftenTimed time("WrapXlaData");
  return time;
}

Launched launch(const Run& run) {
  const bool has_room = check_memory(run.program, run.device);
  const bool keeps_inputs = run.keeps_inputs || (has_room && !run.program.has_run);
  const pjrt::Devices& devices = Runtime::get().devices(run.device);
  std::vector<const pjrt::Array*> arrays;
  arrays.reserve(run.inputs.size() + 2);  // the program's launch adds the numbers
  const bool poisons = donation_check() == DonationCheck::Poison;
  StandIns stand_ins(run.device);
  Launched launched;
  std::vector<int64_t> kept;
  pjrt::Executable::ArrayResult result;
  try {
    static const debug::OftenTimed time("UnwrapXlaData");
    std::optional<debug::OftenTimed::Scope> scope(time);
    for (size_t i = 0; i < run.inputs.size(); ++i) {
      const std::shared_ptr<pjrt::Array>& array = *run.inputs[i];
      if (array->loss() != nullptr) fail_lost(*array);
      send(*array, devices);
      arrays.push_back(array.get());
      if (!run.program.reuses(i)) continue;
      if (keeps_inputs || !run.takes_over(i)) {
        kept.push_back(static_cast<int64_t>(i));
        continue;
      }
      launched.taken_over.push_back(array);
      if (poisons) arrays.back() = stand_ins.of(array);
    }
    scope.reset();
    result = start(run.program, std::move(arrays), run.numbers, run.device, run.is_awaited, kept,
                   run.is_eager);
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

void fail_launch(const Run& run, const pjrt::Error& error, const std::string& line,
                 const std::string& context) {
  for (const auto* input : run.inputs) {
    if ((*input)->loss() != nullptr) fail_lost(**input);
  }
  int64_t lost = 0;
  for (size_t i = 0; i < run.inputs.size(); ++i) {
    pjrt::Array& array = **run.inputs[i];
    if (!run.takes_over(i) || !array.is_deleted()) continue;
    array.set_loss(error.what());
    ++lost;
  }
  const bool no_memory = error.code() == PJRT_Error_Code_RESOURCE_EXHAUSTED;
  fail(error,
       (no_memory ? memory_needs(run.program) : "") + describe_failure(line, lost) + context);
}

}  // namespace torch_xla::executor
