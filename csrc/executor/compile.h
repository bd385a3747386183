// Gives the programs of graphs: from memory by key, from the disk, or from the compiler.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "executor/analysis.h"
#include "executor/auto_sharding.h"
#include "executor/graph.h"
#include "executor/program.h"
#include "lazy/lock.h"
#include "pjrt/compile_options.h"
#include "pjrt/plugin.h"

namespace torch_xla::executor {

class Compilation;

// What a graph lacks before it can run: its program; or, where `constants` are given, that they are
// data (executor/new_state.h); or what is `unplanned`; or the end of a `compilation`; or that runs
// are launched which come before it.
struct Missing {
  std::vector<lazy::Value> constants;
  Unplanned unplanned;
  std::shared_ptr<Compilation> compilation;
  bool runs = false;
  std::exception_ptr refusal;  // why the program could not be made
  util::Hash128 key;
  std::vector<Lowered> lowered;  // of each executable
  pjrt::CompileOptions options;
  std::shared_ptr<Program> program;  // all but the executables
};

// Returns the program of a graph, or null after filling `missing`. The caller holds the GraphLock.
// `name` becomes Program::name.
std::shared_ptr<const Program> find_program(std::string_view name, const Graph& graph,
                                            Missing& missing);
// Counts the run of a graph as a step, if it is one (executor/new_state.h); find_program() does so
// where it returns the program.
void count_update(const Graph& graph);
// Thrown where the compiler refuses a program. raise() throws what the user is told, which may take
// the GraphLock.
struct NotMade {
  pjrt::Error error;
  std::string context;

  [[noreturn]] void raise() const;
};
// Makes the program: fills in its executables. Returns the seconds that the compiler took, none if
// they come from the disk. `cause` is what asks for it. Takes no lock; throws NotMade.
std::optional<double> make(const Missing& missing, const Cause& cause);
// Puts the program where find_program() finds it.
void keep(const Missing& missing, const Cause& cause, std::optional<double> seconds);

// Returns the compile options of programs for a device.
pjrt::CompileOptions compile_options_of(int device);

// A program of this process as it would be on another platform.
struct Elsewhere {
  std::string name;  // Program::name
  std::string text;
  std::string refusal;  // why there is none
};
// From now on each program that this process has not had yet is lowered for `platform` too.
void lower_also_for(std::string platform);
// Returns those since the last call, in the order in which they were first needed.
std::vector<Elsewhere> take_also_lowered();

// Returns the programs that are kept, the most recently used first.
std::vector<std::shared_ptr<const Program>> cached_programs();
void clear_cached_programs();
// Drops the programs that were made from a call with this signature key. The caller holds the
// GraphLock.
void drop_programs_with(const util::Hash128& signature);

}  // namespace torch_xla::executor
