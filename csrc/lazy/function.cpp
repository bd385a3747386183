#include "lazy/function.h"

#include <unordered_set>

namespace torch_xla::lazy {

void KeptFunction::add_parameter(Value leaf) {
  parameters.push_back(leaf.node.get());
  placeholders.push_back(std::move(leaf));
}

void KeptFunction::replace_parameter(size_t i, Value leaf) {
  const Node* old = parameters[i];
  const auto replace = [&](Value& value) {
    if (value.node.get() == old) value = leaf;
  };
  // The calls belong to the function alone.
  for (const Node* call : calls) {
    for (Value& operand : const_cast<Node*>(call)->operands_) replace(operand);
  }
  for (Value& result : results) replace(result);
  parameters[i] = leaf.node.get();
  placeholders[i] = std::move(leaf);  // last: `old` may end here
}

bool KeptFunction::collect(c10::function_ref<Part(const Node&)> part_of) {
  std::unordered_set<const Node*> known(parameters.begin(), parameters.end());
  std::vector<std::pair<const Node*, size_t>> stack;
  // Returns false where the node is foreign.
  const auto enter = [&](const Value& value) {
    const Node* node = value.node.get();
    if (!known.insert(node).second) return true;
    const Part part = part_of(*node);
    if (part == Part::Call) stack.emplace_back(node, 0);
    if (part == Part::Parameter) add_parameter(value);
    return part != Part::Foreign;
  };
  for (const Value& result : results) {
    if (result && !enter(result)) return false;
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->operands().size()) {
        if (!enter(node->operands()[next++])) return false;  // may move the stack
        continue;
      }
      calls.push_back(node);
      stack.pop_back();
    }
  }
  return true;
}

}  // namespace torch_xla::lazy
