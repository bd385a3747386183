// The part of the recorded graph that a run computes: collected in one walk, with its key.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include "executor/compile/auto_sharding.h"
#include "executor/program/lower.h"
#include "executor/program/numbers.h"
#include "lazy/function.h"
#include "util/hash.h"

namespace torch_xla::executor {

// The split of a result among the devices, as far as that is known.
struct WantedSplit {
  const spmd::Sharding* sharding = nullptr;  // null: nothing was asked for
  uint64_t replaced = 0;                     // Node::id() of the data that it takes the place of
};

// A function of the recorded graph, bound to the data, numbers and device of one run. Valid while
// the graph lock is held. Its results are distinct, and none of them is data.
struct Graph : lazy::Function {
  PackedNumbers numbers;
  std::vector<int32_t> reused_by;  // of each parameter's buffer: the result that may take it, or -1
  bool offers_taken = false;       // whether that may be by hand (executor/run/offers.h)
  int device = 0;
  // Where a value is split among the devices: what all shardings can refer to, and how results are
  // to be split. Those without a sharding are split as the compiler chooses.
  const spmd::Mesh* mesh = nullptr;
  std::vector<const spmd::Sharding*> shardings;
  std::vector<int32_t> replaces;  // of each result: the parameter that it takes the place of, or -1
  std::shared_ptr<const SplitPlan> plan;  // what set_split_planner()'s planner has said
  util::Hash128 structure;                // over the calls and the types of parameters
  util::Hash128 key;                      // over everything that the program depends on

  // `ending` lists the calls that the caller will release once the run has begun, each as often as
  // it holds it. Without it, no buffer is reused. `wanted` is of the first results, or all.
  Graph(std::vector<lazy::Value> results, int device,
        const std::vector<const lazy::Node*>* ending = nullptr,
        const std::vector<WantedSplit>& wanted = {}, bool takes_offers = false);

  Interface interface() const;

 private:
  void walk(util::Hasher& h);
  void choose_shardings(const std::vector<WantedSplit>& wanted);
  void find_replaced(const std::vector<WantedSplit>& wanted);
  void choose_manual(const std::vector<WantedSplit>& wanted);
  const spmd::Sharding* sharding_of_reuse(size_t parameter);
  const spmd::Sharding* whole(size_t rank);

  std::vector<const spmd::Sharding*> whole_;  // by rank; null: not asked for yet
  void find_survivors(const std::vector<const lazy::Node*>& ending);
  std::unordered_set<const lazy::Node*> needed_later() const;
  std::unordered_set<const lazy::Node*> taken_by_hand() const;
  std::vector<std::pair<size_t, const lazy::Geometry*>> free_parameters() const;
  std::vector<const lazy::Node*> updated_leaves() const;
  void choose_reuse();
};

// Counts inputs as PyTorch/XLA's documents do: data, numbers but 0 and 1, equal ones once, and one
// seed for all draws.
size_t count_inputs(const Graph& graph);

// Tells whether a graph computes a node, or the node needs what it computes. Valid until the next
// walk.
class Dependents {
 public:
  explicit Dependents(const Graph& graph);
  bool contains(const lazy::Node* node) const;
  // Returns whether the graph computes it.
  bool is_computed(const lazy::Node* node) const { return node->walk == computed_; }

 private:
  uint64_t computed_, later_, no_;  // marks of nodes
};

// Tells whether a value is made of Python numbers alone, and is whole numbers, few of them: the
// positions of tokens, say. Whoever reads one need not wait for what the device works on. Valid
// until the next walk.
class FromNumbers {
 public:
  FromNumbers();
  bool contains(const lazy::Node* node) const;

 private:
  uint64_t yes_, no_;  // marks of nodes
};

}  // namespace torch_xla::executor
