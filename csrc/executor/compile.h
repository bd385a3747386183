// Gives the programs of graphs: from memory by key, from the disk, or from the compiler.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/graph.h"
#include "executor/program.h"
#include "lazy/lock.h"
#include "pjrt/compile_options.h"

namespace torch_xla::executor {

// A program that must be compiled, or loaded, before its graph can run.
struct Missing {
  util::Hash128 key;
  Lowered lowered;
  pjrt::CompileOptions options;
  std::shared_ptr<Program> program;  // all but the executable
};

// Returns whether find_program() will give a program. The caller holds the GraphLock.
bool has_program(const Graph& graph);
// Returns the program of a graph, or null after filling `missing`. The caller holds the GraphLock.
// `name` becomes Program::name.
std::shared_ptr<const Program> find_program(const char* name, const Graph& graph, Missing& missing);
// Makes the program and puts it where find_program() finds it.
void provide(Missing& missing);

// Calls `attempt` under the GraphLock until it returns true; on false it has filled `missing`. The
// compiler runs without the lock, so the graph may have changed when `attempt` is called again.
template <class Attempt>
void with_program(Attempt attempt) {
  constexpr int kPatience = 3;  // then others have to wait, or a busy thread could starve this one
  Missing missing;
  for (int tries = 1;; ++tries) {
    {
      const lazy::GraphLock lock;
      if (attempt(missing)) return;
      if (tries >= kPatience) provide(missing);
    }
    if (tries < kPatience) provide(missing);
  }
}

// Returns the compile options of programs for a device.
pjrt::CompileOptions compile_options_of(int device);

// Returns the programs that are kept, the most recently used first.
std::vector<std::shared_ptr<const Program>> cached_programs();
void clear_cached_programs();

}  // namespace torch_xla::executor
