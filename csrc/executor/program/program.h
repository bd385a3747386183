// Program, a compiled function: its executables, its interface, its results and the function that
// it was made from.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "debug/trace.h"
#include "executor/program/lower.h"
#include "executor/program/numbers.h"
#include "executor/program/pieces.h"
#include "lazy/function.h"
#include "lazy/geometry.h"
#include "ops/exchange.h"
#include "pjrt/executable.h"
#include "util/hash.h"

namespace torch_xla::executor {

// A program needs so many bytes of a device's memory; those of its largest piece, where there is a
// plan.
struct MemoryNeeds {
  int64_t arguments = 0, results = 0, temporaries = 0;
  int64_t reused = 0;  // of the arguments: results have that memory, and do not count

  int64_t more() const { return results + temporaries; }
};

// Remembers the results of a program's runs on numbers alone: a few that came twice. Guarded by the
// GraphLock.
class Remembered {
 public:
  // Returns the results on these numbers, row-major CPU tensors, or null.
  const std::vector<at::Tensor>* find(const PackedNumbers& numbers) const;
  // Notes that the program runs on these numbers; returns whether it has done so before.
  bool comes_again(const PackedNumbers& numbers);
  void add(const PackedNumbers& numbers, std::vector<at::Tensor> results);

 private:
  struct Run {
    PackedNumbers numbers;
    std::vector<at::Tensor> results;  // none: not asked for yet
  };
  std::deque<Run> runs_;  // the oldest first
};

struct Program {
  std::string name;   // who asked for it: "sync", "read", ..
  std::string place;  // the user's line that did so first; empty where not known
  util::Hash128 key;
  std::vector<std::unique_ptr<pjrt::Executable>> executables;  // one, where there is no plan
  std::vector<std::string> files;  // of the disk cache that have them; "" for one compiled here
  std::vector<bool> need_gates;    // the executables that a launch would run, though it takes long
  std::optional<Plan> plan;
  Interface interface;
  size_t num_inputs = 0;  // as count_inputs() counts them, of the graph that asked for it first
  std::vector<const lazy::Geometry*> results;
  std::vector<const spmd::Sharding*> shardings;  // of results; null, or none: each has the whole
  bool reuses_buffers = false;                   // those that its interface names
  bool can_fail = false;                         // once it runs: such a program is waited for
  lazy::Function function;
  std::shared_ptr<const ops::ExchangeNotes> exchanges;  // with other replicas; null: none
  std::string text;                             // StableHLO, kept when XLA_CHECK_GRAPH_KEY was set
  std::string flags;                            // util::flags::cache_key_text() when it was made
  std::optional<MemoryNeeds> needs;             // none where the plugin does not tell
  mutable std::atomic<bool> has_run = false;    // to its end, without a failure
  mutable std::atomic<bool> is_agreed = false;  // with those replicas
  mutable Remembered remembered;

  // Tells whether a result takes over the memory of this parameter.
  bool reuses(size_t parameter) const {
    return reuses_buffers && interface.parameters[parameter].reused_by >= 0;
  }
};

// Reads what the compiler tells of the program's executables.
std::optional<MemoryNeeds> needs_of(const Program& program);

// Adds to a span of a profile which program it is of.
void add_details(const Program& program, debug::Span& span);

}  // namespace torch_xla::executor
