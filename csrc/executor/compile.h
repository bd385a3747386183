// Programs of graphs: kept by key, taken from the disk, or compiled.
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
  std::shared_ptr<Program> program;  // all of it but the executable
};

// The program of a graph, or null after filling `missing`. Under the graph lock. `name`: of what
// asks for it.
std::shared_ptr<const Program> find_program(const char* name, const Graph& graph, Missing& missing);
// Makes the program and puts it where find_program() finds it.
void provide(Missing& missing);

// Calls `attempt`, under the graph lock, until the program it needs is there. It returns whether it
// is done. The compiler runs without the lock, so the graph may have changed when it returns.
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

// What the compiler is told of programs for a device.
pjrt::CompileOptions compile_options_of(int device);

// The programs that are kept, the most recently used first.
std::vector<std::shared_ptr<const Program>> cached_programs();
void clear_cached_programs();

}  // namespace torch_xla::executor
