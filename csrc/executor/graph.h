// The part of the recorded graph that a run computes: collected in one walk, with its key.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "lazy/node.h"
#include "ops/target.h"
#include "util/hash.h"

namespace torch_xla::executor {

// Numbers of a run, packed: they travel as two arrays.
struct PackedNumbers {
  std::vector<double> floats;
  std::vector<int64_t> ints;

  void add(const lazy::Number& number, lazy::NumberKind kind);
};

// Which Python numbers are constants of programs: none, unless a program asks for it. Random seeds
// never are. Guarded by the graph lock.
struct ConstantNumbers {
  bool zero_and_one = false;
  bool all = false;

  bool contains(const lazy::Signature& signature, const lazy::Numbers& numbers, size_t i) const;
};
ConstantNumbers& constant_numbers();

// Valid while the graph lock is held: it borrows the nodes.
struct Graph {
  std::vector<const lazy::Node*> calls;   // operands before users
  std::vector<const lazy::Node*> inputs;  // data leaves, in the order the walk met them
  std::vector<lazy::Value> roots;         // distinct, none of them data
  PackedNumbers numbers;
  std::vector<int32_t> aliases;  // per input: the root that may take its buffer, or -1
  int device = 0;
  util::Hash128 key;  // over everything that the program depends on

  // `ending` has a call as often as the caller will have let it go when the run has begun. Without
  // it, no buffer is reused.
  Graph(std::vector<lazy::Value> roots, int device,
        const std::vector<const lazy::Node*>* ending = nullptr);

 private:
  void walk(util::Hasher& h);
  void find_survivors(const std::vector<const lazy::Node*>& ending);
  std::vector<const lazy::Node*> updated_leaves() const;
  void choose_aliases();
};

// Tells which nodes a graph computes or need what it computes. Valid until the next walk.
class Dependents {
 public:
  explicit Dependents(const Graph& graph);
  bool contains(const lazy::Node* node) const;

 private:
  uint64_t yes_, no_;  // marks of nodes
};

// Lowers one call alone and throws what its rule throws, so that it is known when the call is made.
// Whether the program calls a kernel of PyTorch's.
bool try_lowering(const lazy::Signature& signature, const ops::Target& target);

struct Lowered {
  // StableHLO: inputs, then the packed floats and ints where there are any.
  std::string text;
  bool reuses_buffers = false;  // those of Graph::aliases
  bool can_fail = false;        // once it runs; such a program reuses none
};

Lowered lower(const Graph& graph, const ops::Target& target);

}  // namespace torch_xla::executor
