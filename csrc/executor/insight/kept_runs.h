// Runs that are kept for those who look into them: which call gave the first wrong number, which
// takes the time. Nothing is kept unless somebody asks.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "executor/program/program.h"
#include "lazy/function.h"

namespace torch_xla::executor {

struct Graph;

// What a run computed, and from what. It refers to its inputs, whose memory no run takes over while
// runs are kept.
struct KeptRun {
  lazy::Function function;               // calls as they were recorded; traced functions are open
  std::vector<lazy::DeviceData> inputs;  // of the function's parameters
  int device = 0;
  std::string name, place;  // of the program, and `key`
  util::Hash128 key;
};

// Keeps the newest runs from now on, so many of them; with 0 none. Returns how many it was before.
size_t keep_runs(size_t most);
// Called before each launch: keeps the run if any is kept, and returns whether. The caller holds
// the GraphLock.
bool keep_run(const Graph& graph, const Program& program);
bool keeps_runs();
std::shared_ptr<const KeptRun> newest_kept_run();  // null: none is kept
// Returns the runs that are kept, oldest first.
std::vector<std::shared_ptr<const KeptRun>> kept_runs();

// Computes a kept run anew, some calls at a time.
class RunReplay {
 public:
  explicit RunReplay(std::shared_ptr<const KeptRun> run);

  const KeptRun& run() const { return *run_; }
  // Computes calls whose operands have been computed, as one program, for so many seconds or a few
  // times at least. Returns the time of each run. `all_results`: those that no other call needs are
  // kept too.
  std::vector<double> compute(const std::vector<size_t>& calls, double seconds, bool all_results);
  // Returns what a call gave or was given, as CPU tensors, until the next compute(); an undefined
  // one where there is none.
  std::vector<at::Tensor> results(size_t call);
  std::vector<at::Tensor> operands(size_t call);

 private:
  bool is_computed(size_t call) const { return !values_[run_->function.index_of(call)].empty(); }
  lazy::Value value_of(const lazy::Ref& r) const;  // undefined: not computed, or not kept
  std::vector<at::Tensor> download(const std::vector<lazy::Value>& values) const;
  void drop_unneeded();

  const std::shared_ptr<const KeptRun> run_;
  // By Ref::index: data, none before it is computed; and the calls that have yet to read it.
  std::vector<std::vector<lazy::Value>> values_;
  std::vector<size_t> readers_;
};

}  // namespace torch_xla::executor
