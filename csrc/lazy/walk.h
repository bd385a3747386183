// Walks over the recorded graph. The caller holds the GraphLock.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "lazy/node.h"

namespace torch_xla::lazy {

// Nodes, each with its place. A node says where it lies in the set that it entered last, so finding
// it takes no table: for 3,500 nodes that is 7 us, and with a table of hashes 105, a quarter of a
// warm sync. An earlier set has lost the nodes that a later one has taken.
class NodeSet {
 public:
  bool contains(const Node* node) const {
    return node->place < nodes_.size() && nodes_[node->place] == node;
  }
  void add(const Node* node) {
    node->place = static_cast<uint32_t>(nodes_.size());
    nodes_.push_back(node);
  }
  // Takes back what a later set has taken.
  void retake() const {
    for (size_t i = 0; i < nodes_.size(); ++i) nodes_[i]->place = static_cast<uint32_t>(i);
  }
  size_t size() const { return nodes_.size(); }
  const Node* operator[](size_t place) const { return nodes_[place]; }

 private:
  std::vector<const Node*> nodes_;
};

// The recorded calls that compute values, and the leaves that they read. Borrows its nodes.
struct Walk {
  NodeSet nodes;                        // all, in the order in which the walk came past
  std::vector<const Node*> parameters;  // leaves
  std::vector<const Node*> calls;       // operands before users
  std::vector<Value> results;
};
Walk walk_of(std::vector<Value> results);

// Visits the nodes under some values, operands before users, without recursion: graphs are deeper
// than stacks. `enter` gets each value that is met and returns whether its node is to be visited:
// then its operands are, and `leave` gets it after them.
template <class Enter, class Leave>
void visit(std::span<const Value> roots, Enter&& enter, Leave&& leave) {
  std::vector<std::pair<const Node*, size_t>> stack;
  for (const Value& root : roots) {
    if (enter(root)) stack.emplace_back(root.node.get(), 0);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->operands().size()) {
        const Value& operand = node->operands()[next++];
        if (enter(operand)) stack.emplace_back(operand.node.get(), 0);  // may move the stack
        continue;
      }
      const Node* done = node;
      stack.pop_back();
      leave(*done);
    }
  }
}

}  // namespace torch_xla::lazy
