#include "lazy/function.h"

#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace torch_xla::lazy {

Value placeholder(const Geometry& geometry, int device) {
  return {c10::make_intrusive<Node>(intern_contiguous(geometry.dtype, geometry.sizes), device,
                                    DeviceData{}),
          0};
}

Function function_of(std::vector<Value> results) {
  Function function;
  std::unordered_set<const Node*> entered;
  std::vector<std::pair<const Node*, size_t>> stack;
  const auto enter = [&](const Node* node) {
    if (!entered.insert(node).second) return;
    if (node->is_data()) {
      function.parameters.push_back(node);
    } else {
      stack.emplace_back(node, 0);
    }
  };
  for (const Value& result : results) {
    enter(result.node.get());
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->operands().size()) {
        enter(node->operands()[next++].node.get());  // may move the stack
        continue;
      }
      function.calls.push_back(node);
      stack.pop_back();
    }
  }
  function.results = std::move(results);
  return function;
}

size_t Function::num_seeds() const {
  size_t count = 0;
  for (const Node* call : calls) count += call->signature().num_seeds;
  return count;
}

util::Hash128 Function::hash() const {
  util::Hasher h;
  std::unordered_map<const Node*, uint64_t> ordinals;
  const auto add = [&](const Value& v) {
    if (v) {
      h.add(ordinals.at(v.node.get())).add(v.index);
    } else {
      h.add(~uint64_t{0});
    }
  };
  for (const Node* parameter : parameters) {
    ordinals.emplace(parameter, ordinals.size());
    h.add(parameter->output(0).hash);
  }
  for (const Node* call : calls) {
    ordinals.emplace(call, ordinals.size());
    const Signature& s = call->signature();
    h.add(s.key);
    for (const Value& operand : call->operands()) add(operand);
    for (size_t i = 0; i < s.numbers.size(); ++i) {
      if (s.is_seed(i)) continue;
      h.add(static_cast<uint64_t>(call->numbers()[i].integer)).add_double(call->numbers()[i].imag);
    }
  }
  for (const Value& result : results) add(result);
  return h.finish();
}

c10::intrusive_ptr<Node> copy_of(const Node& call, Operands&& operands) {
  Numbers numbers;
  for (const Number& number : call.numbers()) numbers.push_back(number);
  auto copy = c10::make_intrusive<Node>(call.shared_signature(), std::move(operands),
                                        std::move(numbers), call.device());
  copy->source() = call.source();
  return copy;
}

void KeptFunction::add_parameter(Value leaf) {
  parameters.push_back(leaf.node.get());
  placeholders.push_back(std::move(leaf));
}

namespace {

struct ValueHasher {
  size_t operator()(const Value& v) const {
    return std::hash<const Node*>()(v.node.get()) ^ (size_t{v.index} << 48);
  }
};

}  // namespace

std::vector<Value> KeptFunction::collect(c10::function_ref<bool(const Node&)> belongs) {
  std::vector<Value> captured;
  std::unordered_map<Value, Value, ValueHasher> leaves;
  for (const Value& leaf : placeholders) leaves.emplace(leaf, leaf);
  std::unordered_map<const Node*, c10::intrusive_ptr<Node>> copies;  // null until it is made
  std::vector<std::pair<const Node*, size_t>> stack;

  const auto enter = [&](const Value& value) {
    const Node* node = value.node.get();
    if (copies.contains(node) || leaves.contains(value)) return;
    if (!node->is_data() && belongs(*node)) {
      copies.emplace(node, nullptr);
      stack.emplace_back(node, 0);
    } else {
      captured.push_back(value);
      add_parameter(placeholder(value.geometry(), node->device()));
      leaves.emplace(value, placeholders.back());
    }
  };
  const auto inside = [&](const Value& value) {
    const auto copy = copies.find(value.node.get());
    return copy != copies.end() ? Value{copy->second, value.index} : leaves.at(value);
  };

  for (Value& result : results) {
    if (!result) continue;
    enter(result);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->operands().size()) {
        enter(node->operands()[next++]);  // may move the stack
        continue;
      }
      Operands operands;
      for (const Value& operand : node->operands()) operands.push_back(inside(operand));
      auto& copy = copies.at(node);
      copy = copy_of(*node, std::move(operands));
      calls.push_back(copy.get());
      stack.pop_back();
    }
    result = inside(result);
  }
  return captured;
}

OpenedFunction open(const Function& function, c10::function_ref<bool(const Signature&)> is_large) {
  OpenedFunction opened;
  opened.parameters = function.parameters;
  // The values in place of the results of a call or of an expansion's parameter; leaves stand for
  // themselves.
  using Standing = std::unordered_map<const Node*, std::vector<Value>>;
  const auto inside = [](const Standing& standing, const Value& value) {
    const auto there = standing.find(value.node.get());
    return there == standing.end() ? value : there->second[value.index];
  };
  const auto copy = [&](const Node& call, Standing& standing) {
    Operands operands;
    for (const Value& operand : call.operands()) operands.push_back(inside(standing, operand));
    const auto& node = opened.nodes.emplace_back(copy_of(call, std::move(operands)));
    opened.calls.push_back(node.get());
    opened.standing.back().push_back(node.get());
    std::vector<Value>& results = standing[&call];
    for (uint32_t k = 0; k < call.num_outputs(); ++k) results.push_back({node, k});
  };

  Standing outer;
  for (const Node* call : function.calls) {
    opened.standing.emplace_back();
    if (!is_large(call->signature())) {
      copy(*call, outer);
      continue;
    }
    const KeptFunction& expansion = *call->signature().expansion;
    Standing inner;
    for (size_t i = 0; i < expansion.parameters.size(); ++i) {
      inner[expansion.parameters[i]] = {inside(outer, call->operands()[i])};
    }
    for (const Node* part : expansion.calls) copy(*part, inner);
    for (const Value& result : expansion.results) outer[call].push_back(inside(inner, result));
  }
  for (const Value& result : function.results) opened.results.push_back(inside(outer, result));
  return opened;
}

}  // namespace torch_xla::lazy
