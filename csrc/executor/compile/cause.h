// Cause, why a program is compiled or run.
#pragma once

#include <string_view>

namespace torch_xla::executor {

struct Cause {
  // In words for users.
  std::string_view of_run;
  std::string_view of_compilation = of_run;
  std::string_view program = "read";  // Program::name, where it is not a sync's
  // The program belongs to its line: another program of that line is a recompile.
  bool is_of_line = true;
  // Nobody waits for the run: it may wait for its program (step/deferred.h).
  bool is_barrier = false;
  // The run may take over what was offered by hand. Those of a sync may in any case.
  bool takes_offers = false;
  std::string_view graph_name = {};  // that reports give the graph; empty: the CompiledRegion's
};

inline constexpr Cause kValueIsRead = {
    "most likely user code trying to access tensor value before torch_xla.sync"};
inline constexpr Cause kDynamo = {.of_run = "dynamo is executing a compiled program",
                                  .of_compilation = "dynamo is compiling a FX graph to HLO",
                                  .program = "torch.compile",
                                  .is_barrier = true,
                                  .takes_offers = true};
inline constexpr Cause kEagerMode = {.of_run = "an operation in eager mode",
                                     .is_of_line = false};  // each has a program
// Parts of a run that somebody looks into (insight/kept_runs.h).
inline constexpr Cause kExamined = {"a kept run is examined", "a kept run is examined", "examined"};
inline constexpr Cause kSynchronize = {"user synchronize"};

// Each operation is a program there: telling of them would say nothing.
inline bool is_eager(const Cause& cause) { return cause.of_run == kEagerMode.of_run; }

}  // namespace torch_xla::executor
