// Gives the programs of graphs: from memory by key, from the disk, or from the compiler.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "executor/compile/cause.h"
#include "executor/compile/graph.h"
#include "executor/compile/unplanned.h"
#include "executor/program/lower.h"
#include "executor/program/program.h"
#include "pjrt/compile_options.h"
#include "pjrt/plugin.h"

namespace torch_xla::executor {

// Constants that are to be data before the graph runs (new_state.h).
struct NewState {
  std::vector<lazy::Value> constants;
};

// A program that is lowered and not compiled.
struct Unmade {
  std::vector<Lowered> lowered;  // of each executable
  pjrt::CompileOptions options;
  std::shared_ptr<Program> program;  // all but the executables
};

// The first thing that a graph without a program lacks.
using Lack = std::variant<NewState, Unplanned, Unmade>;

// Returns the program of a graph, or null. `name` becomes Program::name. It is counted as a step,
// and as a hit unless it is asked for `again`. The caller of these two holds the GraphLock.
std::shared_ptr<const Program> find_program(std::string_view name, const Graph& graph, bool again);
Lack lack_of(std::string_view name, const Graph& graph);
// Thrown where the compiler refuses a program. raise() throws what the user is told, which may take
// the GraphLock.
struct NotMade {
  pjrt::Error error;
  std::string context;

  [[noreturn]] void raise() const;
};
// Makes the program: fills in its executables. Returns the seconds that the compiler took, none if
// they come from the disk. `cause` is what asks for it. Takes no lock; throws NotMade.
std::optional<double> make(const Unmade& unmade, const Cause& cause);
// Puts the program where find_program() finds it.
void keep(const Unmade& unmade, const Cause& cause, std::optional<double> seconds);

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
