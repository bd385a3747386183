// Tells each compilation and each run, why it happened and where, and what is too frequent, where
// PT_XLA_DEBUG_LEVEL asks for it. The text is that of PyTorch/XLA's "Compilation & Execution
// Analysis", which people and programs read.
#pragma once

#include <string_view>

#include "executor/graph.h"
#include "executor/program.h"

namespace torch_xla::executor {

// Why a program is compiled or run, in words for users.
struct Cause {
  std::string_view of_run;
  std::string_view of_compilation = of_run;
  std::string_view program = "read";  // Program::name, where it is not a sync's
  // Whether the program is one of its line's, of which another one is a recompile.
  bool is_of_line = true;
  // Nobody waits for the run: it may wait for its program (executor/deferred.h).
  bool is_barrier = false;
  // The run may take over what was offered by hand. Those of a sync may in any case.
  bool takes_offers = false;
  std::string_view graph_name = {};  // that reports give the graph; empty for that of the Region
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
// Parts of a run that somebody looks into: kept_runs.h.
inline constexpr Cause kExamined = {"a kept run is examined", "a kept run is examined", "examined"};
inline constexpr Cause kSynchronize = {"user synchronize"};

// Each operation is a program there: telling of them would say nothing.
inline bool is_eager(const Cause& cause) { return cause.of_run == kEagerMode.of_run; }
// The graph's name in reports; empty where it has none.
std::string_view graph_name(const Cause& cause);
// How many inputs PyTorch/XLA's documents count: data, numbers but 0 and 1, equal ones once, and
// one seed for all draws.
size_t count_inputs(const Graph& graph);

// These cost a look at a flag where nothing is to be told. The first two come before and after the
// compiler, the third in place of both where the disk had the program, the fourth before a launch.
void tell_compilation(const Program& program, const Cause& cause);
void tell_compiled(const Program& program, const std::vector<Lowered>& texts);
void tell_loaded(const Program& program, const std::vector<Lowered>& texts, const Cause& cause,
                 double seconds);
void tell_run(const Graph& graph, const Cause& cause);
bool tells_compilations();
// Tells, always, of a run where none may happen.
void tell_unexpected(const Graph& graph, const Cause& cause);
// Called after each step: tells which metrics are those of a program that waits too often.
void tell_metrics();

}  // namespace torch_xla::executor
