#include "lazy/walk.h"

namespace torch_xla::lazy {

Walk walk_of(std::vector<Value> results) {
  Walk walk;
  const auto enter = [&](const Value& value) {
    const Node* node = value.node.get();
    if (walk.nodes.contains(node)) return false;
    if (!node->is_data()) return true;
    walk.nodes.add(node);
    walk.parameters.push_back(node);
    return false;
  };
  const auto leave = [&](const Node& call) {
    walk.nodes.add(&call);
    walk.calls.push_back(&call);
  };
  lazy::visit(results, enter, leave);
  walk.results = std::move(results);
  return walk;
}

}  // namespace torch_xla::lazy
