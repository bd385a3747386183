// One run of a program on data: for a graph that is there, or one whose program had to be awaited.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "debug/metrics.h"
#include "executor/in_flight.h"
#include "executor/numbers.h"
#include "executor/program.h"

namespace torch_xla::executor {

struct Run {
  const Program& program;
  std::vector<const std::shared_ptr<pjrt::Array>*> inputs;
  const std::vector<int32_t>& reused_by;  // of each input: the result that may take it over, or -1
  const PackedNumbers& numbers;
  int device;
  bool is_awaited = false;  // at once, by who launches it
  bool is_eager = false;    // a call in eager mode

  bool takes_over(size_t input) const { return program.reuses_buffers && reused_by[input] >= 0; }
};

struct Launched {
  std::vector<std::shared_ptr<pjrt::Array>> results;
  std::vector<pjrt::Event> done;
  InFlight::Arrays taken_over;  // inputs whose memory results have now
};

// What a graph has after its run was launched, or put off.
struct Given {
  std::vector<lazy::DeviceData> data;  // of each result
  InFlight::Arrays taken_over;         // where DonationCheck asks for it
};

// Of making what a run has given the data of values.
const debug::OftenTimed& wrapping_time();

// Throws pjrt::Error, also where the run cannot have the memory that it needs by the compiler's
// figures. Nothing is taken over where `keeps_inputs`, nor, where there is memory for that, by a
// program that has not run before: most failures come with its first run.
Launched launch(const Run& run, bool keeps_inputs);
// Throws for a run that could not be launched, at `line` of the user's program. It may have taken
// inputs over: their values are lost, and later runs that need them say why.
[[noreturn]] void fail_launch(const Run& run, const pjrt::Error& error, const std::string& line,
                              const std::string& context = "");

}  // namespace torch_xla::executor
