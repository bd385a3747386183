// One run of a program on data: for a graph that is there, or one whose program had to be awaited.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "debug/metrics.h"
#include "executor/program/numbers.h"
#include "executor/program/program.h"
#include "executor/run/in_flight.h"

namespace torch_xla::executor {

struct Run {
  const Program& program;
  const PackedNumbers& numbers;
  int device;
  bool is_awaited = false;    // at once, by who launches it
  bool is_eager = false;      // a call in eager mode
  bool keeps_inputs = false;  // whatever the program reuses
  std::vector<const std::shared_ptr<pjrt::Array>*> inputs = {};
  std::vector<bool> is_shared = {};  // inputs that others go on reading; empty: none that it reuses

  // The rule of donation: what the program reuses, unless others go on reading it. A program of
  // recorded calls names only what nobody does (Graph::choose_reuse).
  bool takes_over(size_t input) const {
    return program.reuses(input) && (is_shared.empty() || !is_shared[input]);
  }
};

struct Launched {
  std::vector<std::shared_ptr<pjrt::Array>> results;
  std::vector<pjrt::Event> done;
  InFlight::Arrays taken_over;  // inputs whose memory results have now
};

// The time of making a run's results the data of values.
const debug::OftenTimed& wrapping_time();

// Throws pjrt::Error, also where the run cannot have the memory that it needs by the compiler's
// figures. Where there is memory for that, a program that has not run before takes nothing over:
// most failures come with its first run.
Launched launch(const Run& run);
// Throws for a run that could not be launched, at `line` of the user's program. It may have taken
// inputs over: their values are lost, and later runs that need them say why.
[[noreturn]] void fail_launch(const Run& run, const pjrt::Error& error, const std::string& line,
                              const std::string& context = "");

}  // namespace torch_xla::executor
