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

// The recorded calls of one run, with its data, numbers and device: a function and what it is bound
// to. Valid while the graph lock is held. Its results are distinct, and none of them is data.
struct Graph : lazy::Walk {
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
  lazy::Function function() const { return lazy::function_of(*this); }

 private:
  void walk(lazy::FunctionKey& key);
  void choose_shardings(const std::vector<WantedSplit>& wanted);
  void find_replaced(const std::vector<WantedSplit>& wanted);
  void choose_manual(const std::vector<WantedSplit>& wanted);
  const spmd::Sharding* sharding_of_reuse(size_t parameter);
  const spmd::Sharding* whole(size_t rank);

  std::vector<const spmd::Sharding*> whole_;  // by rank; null: not asked for yet
  // How often the graph, its caller and its results refer to each of `nodes`.
  std::vector<uint32_t> uses_;
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

// Nodes of which something is known: yes or no. A later NodeSet may take them; then it is unknown.
class KnownNodes {
 public:
  void add(const lazy::Node* node, bool answer) {
    nodes_.add(node);
    answers_.push_back(answer);
  }
  bool contains(const lazy::Node* node) const { return nodes_.contains(node); }
  bool is(const lazy::Node* node, bool answer) const {
    return contains(node) && answers_[node->place] == answer;
  }

 private:
  lazy::NodeSet nodes_;
  std::vector<bool> answers_;
};

// Tells whether a graph computes a node, or the node needs what it computes. Valid until another
// graph is made.
class Dependents {
 public:
  explicit Dependents(const Graph& graph) : graph_(graph) {}
  bool contains(const lazy::Node* node);
  // Returns whether the graph computes it.
  bool is_computed(const lazy::Node* node) const {
    return graph_.nodes.contains(node) && !node->is_data();
  }

 private:
  const Graph& graph_;
  KnownNodes later_;  // of nodes that are not the graph's
};

// Tells whether a value is made of Python numbers alone, and is whole numbers, few of them: the
// positions of tokens, say. Whoever reads one need not wait for what the device works on.
class FromNumbers {
 public:
  bool contains(const lazy::Node* node);

 private:
  KnownNodes known_;
};

}  // namespace torch_xla::executor
