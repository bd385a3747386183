#include "executor/program/marked_calls.h"

#include <algorithm>
#include <map>
#include <regex>
#include <unordered_set>
#include <utility>

#include "lazy/operator.h"
#include "ops/registry.h"
#include "util/error.h"

namespace torch_xla::executor {
namespace {

using lazy::Node;
using lazy::Value;

ops::Mark mark_of(const Node& node) {
  if (node.is_data() || node.signature().op->rule == nullptr) return ops::Mark::None;
  return node.signature().op->rule->mark;
}

// Arguments of a mark: (self, name, pos, id, is_input, attributes).
const c10::IValue& argument(const Node& mark, size_t i) {
  return mark.signature().arguments[i].value;
}
bool is_input(const Node& mark) { return argument(mark, 4).toBool(); }

// StableHLO's readers take no other names for composites.
void check_name(const std::string& name) {
  static const auto& form = *new std::regex(R"([a-zA-Z]\w*([.][\w$]+)+)");
  TXLA_CHECK_KIND(util::ErrorKind::Value, std::regex_match(name, form),
                  "mark_tensor: expected a name of letters, digits and underscores with a dot in "
                  "it, as \"my.attention\", got \"",
                  name, "\".");
}

}  // namespace

MarkedCalls::MarkedCalls(const lazy::Function& function) {
  find(function);
  for (const auto& composite : composites_) fill(*composite);
  drop_nested();
  order(function);
}

std::string MarkedCalls::place_of(const Node& call) const {
  const auto found = places_.find(&call);
  return found == places_.end() ? "" : found->second;
}

void MarkedCalls::find(const lazy::Function& function) {
  std::map<std::string, Composite*> by_id;
  for (const Node* call : function.calls) {
    const ops::Mark mark = mark_of(*call);
    if (mark == ops::Mark::Location) {
      places_[call->operands()[0].node.get()] = argument(*call, 1).toStringRef();
    }
    if (mark != ops::Mark::Composite) continue;
    Composite*& composite = by_id[argument(*call, 3).toStringRef()];
    if (composite == nullptr) {
      composites_.push_back(std::make_unique<Composite>());
      composite = composites_.back().get();
      composite->name = argument(*call, 1).toStringRef();
      check_name(composite->name);
      composite->attributes = "{}";
    }
    const std::string& attributes = argument(*call, 5).toStringRef();
    if (!attributes.empty()) composite->attributes = attributes;
    if (is_input(*call)) {
      composite->inputs.push_back({call, 0});
    } else {
      composite->outputs.push_back(call);
    }
  }
  const auto position = [](const Node* mark) { return argument(*mark, 2).toInt(); };
  for (const auto& composite : composites_) {
    std::ranges::stable_sort(composite->outputs, {}, position);
    std::ranges::stable_sort(composite->inputs, {},
                             [&](const Composite::Input& i) { return position(i.node); });
  }
  // Without an output, marks say nothing.
  std::erase_if(composites_, [](const auto& composite) { return composite->outputs.empty(); });
}

// What depends on an input mark, and what is the same everywhere, belongs to the composite; of the
// rest it takes the values.
void MarkedCalls::fill(Composite& composite) {
  enum class Kind : uint8_t { Open, Inner, Constant, Outer };
  std::unordered_map<const Node*, Kind> kinds;
  for (const Composite::Input& input : composite.inputs) kinds[input.node] = Kind::Inner;
  std::vector<const Node*> order;  // operands before users
  std::vector<std::pair<const Node*, size_t>> stack;
  const auto enter = [&](const Node* node) {
    if (!kinds.emplace(node, node->is_data() ? Kind::Outer : Kind::Open).second) return;
    if (!node->is_data()) stack.emplace_back(node, 0);
  };
  for (const Node* output : composite.outputs) {
    enter(output->operands()[0].node.get());
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next < node->operands().size()) {
        enter(node->operands()[next++].node.get());  // may move the stack
        continue;
      }
      Kind kind = Kind::Constant;
      for (const Value& operand : node->operands()) {
        const Kind of = kinds.at(operand.node.get());
        if (of == Kind::Inner) kind = Kind::Inner;
        if (of == Kind::Outer && kind == Kind::Constant) kind = Kind::Outer;
      }
      kinds[node] = kind;
      order.push_back(node);
      stack.pop_back();
    }
  }
  const auto take = [&](const Value& value) {
    const Node* node = value.node.get();
    if (kinds.at(node) != Kind::Outer) return;
    const bool known = std::ranges::any_of(composite.inputs, [&](const Composite::Input& i) {
      return i.node == node && i.index == value.index;
    });
    if (!known) composite.inputs.push_back({node, value.index});
  };
  for (const Node* node : order) {
    if (kinds.at(node) == Kind::Outer) continue;
    composite.calls.push_back(node);
    for (const Value& operand : node->operands()) take(operand);
  }
  for (const Node* output : composite.outputs) take(output->operands()[0]);
}

void MarkedCalls::drop_nested() {
  std::unordered_set<const Composite*> nested;
  for (const auto& outer : composites_) {
    const std::unordered_set<const Node*> calls(outer->calls.begin(), outer->calls.end());
    for (const auto& inner : composites_) {
      if (inner != outer && calls.contains(inner->outputs[0])) nested.insert(inner.get());
    }
  }
  std::erase_if(composites_, [&](const auto& c) { return nested.contains(c.get()); });
  for (const auto& composite : composites_) {
    for (const Node* output : composite->outputs) owner_[output] = composite.get();
  }
}

// As the calls were recorded, but what a composite takes comes before all of it. Calls inside of
// one that others use, too, are computed twice.
void MarkedCalls::order(const lazy::Function& function) {
  enum class State : uint8_t { Begun, Done };
  std::unordered_map<const void*, State> states;
  for (const Node* parameter : function.parameters) states[parameter] = State::Done;
  std::vector<std::pair<Step, size_t>> stack;
  const auto enter = [&](const Node* node) {
    const auto owner = owner_.find(node);
    const Composite* composite = owner == owner_.end() ? nullptr : owner->second;
    const void* key = composite == nullptr ? static_cast<const void*>(node) : composite;
    const auto [state, is_new] = states.emplace(key, State::Begun);
    TXLA_CHECK_KIND(util::ErrorKind::Value, is_new || state->second == State::Done,
                    composite == nullptr ? "composite" : composite->name,
                    ": expected inputs that do not need its outputs. Mark all inputs before what "
                    "is computed of them.");
    if (is_new) stack.push_back({{composite == nullptr ? node : nullptr, composite}, 0});
  };
  const auto run = [&](const Node* start) {
    enter(start);
    while (!stack.empty()) {
      auto& [step, next] = stack.back();
      const Composite* composite = step.composite;
      const size_t count =
          composite == nullptr ? step.call->operands().size() : composite->inputs.size();
      if (next < count) {
        const size_t i = next++;
        enter(composite == nullptr ? step.call->operands()[i].node.get()
                                   : composite->inputs[i].node);  // may move the stack
        continue;
      }
      states[composite == nullptr ? static_cast<const void*>(step.call) : composite] = State::Done;
      steps_.push_back(step);
      stack.pop_back();
    }
  };
  if (composites_.empty()) {
    for (const Node* call : function.calls) steps_.push_back({call, nullptr});
    return;
  }
  // From the results, so that what only composites compute is left out.
  for (const Value& result : function.results) {
    if (result) run(result.node.get());
  }
}

}  // namespace torch_xla::executor
