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

using lazy::Ref;
using Call = lazy::Function::Call;

ops::Mark mark_of(const Call& call) {
  const ops::Rule* rule = call.signature->op->rule;
  return rule == nullptr ? ops::Mark::None : rule->mark;
}

// Arguments of a mark: (self, name, pos, id, is_input, attributes).
const c10::IValue& argument(const Call& mark, size_t i) {
  return mark.signature->arguments[i].value;
}
bool is_input(const Call& mark) { return argument(mark, 4).toBool(); }

// StableHLO's readers take no other names for composites.
void check_name(const std::string& name) {
  static const auto& form = *new std::regex(R"([a-zA-Z]\w*([.][\w$]+)+)");
  TXLA_CHECK_KIND(util::ErrorKind::Value, std::regex_match(name, form),
                  "mark_tensor: expected a name of letters, digits and underscores with a dot in "
                  "it, as \"my.attention\", got \"",
                  name, "\".");
}

}  // namespace

MarkedCalls::MarkedCalls(const lazy::Function& function) : function_(function) {
  find();
  for (const auto& composite : composites_) fill(*composite);
  drop_nested();
  order();
}

std::string MarkedCalls::place_of(uint32_t call) const {
  const auto found = places_.find(call);
  return found == places_.end() ? "" : found->second;
}

void MarkedCalls::find() {
  std::map<std::string, Composite*> by_id;
  for (uint32_t c = 0; c < function_.calls.size(); ++c) {
    const Call& call = function_.calls[c];
    const ops::Mark mark = mark_of(call);
    if (mark == ops::Mark::Location) {
      const Ref& marked = function_.operands_of(call)[0];
      if (!function_.is_parameter(marked)) {
        places_[static_cast<uint32_t>(function_.call_of(marked))] = argument(call, 1).toStringRef();
      }
    }
    if (mark != ops::Mark::Composite) continue;
    Composite*& composite = by_id[argument(call, 3).toStringRef()];
    if (composite == nullptr) {
      composites_.push_back(std::make_unique<Composite>());
      composite = composites_.back().get();
      composite->name = argument(call, 1).toStringRef();
      check_name(composite->name);
      composite->attributes = "{}";
    }
    const std::string& attributes = argument(call, 5).toStringRef();
    if (!attributes.empty()) composite->attributes = attributes;
    if (is_input(call)) {
      composite->stretch.inputs.push_back({function_.index_of(c), 0});
    } else {
      composite->marks.push_back(c);
    }
  }
  const auto position = [&](uint32_t call) { return argument(function_.calls[call], 2).toInt(); };
  for (const auto& composite : composites_) {
    std::ranges::stable_sort(composite->marks, {}, position);
    std::ranges::stable_sort(composite->stretch.inputs, {}, [&](const Ref& input) {
      return position(static_cast<uint32_t>(function_.call_of(input)));
    });
    for (const uint32_t mark : composite->marks) {
      composite->stretch.outputs.push_back(function_.operands_of(function_.calls[mark])[0]);
    }
  }
  // Without an output, marks say nothing.
  std::erase_if(composites_, [](const auto& composite) { return composite->marks.empty(); });
}

// What depends on an input mark, and what is the same everywhere, belongs to the composite; of the
// rest it takes the values.
void MarkedCalls::fill(Composite& composite) {
  enum class Kind : uint8_t { Inner, Constant, Outer };
  Stretch& stretch = composite.stretch;
  const size_t first = function_.parameters.size();
  std::vector<bool> is_input(function_.num_values()), is_needed(function_.num_values());
  for (const Ref& input : stretch.inputs) is_input[input.index] = true;
  for (const Ref& output : stretch.outputs) is_needed[output.index] = true;
  for (size_t i = function_.num_values(); i-- > first;) {  // users before operands
    if (!is_needed[i] || is_input[i]) continue;
    for (const Ref& r : function_.operands_of(function_.calls[i - first])) {
      is_needed[r.index] = true;
    }
  }
  std::vector<Kind> kinds(function_.num_values(), Kind::Outer);
  for (size_t i = first; i < kinds.size(); ++i) {
    if (!is_needed[i]) continue;
    kinds[i] = is_input[i] ? Kind::Inner : Kind::Constant;
    if (is_input[i]) continue;
    for (const Ref& r : function_.operands_of(function_.calls[i - first])) {
      const Kind of = kinds[r.index];
      if (of == Kind::Inner) kinds[i] = Kind::Inner;
      if (of == Kind::Outer && kinds[i] == Kind::Constant) kinds[i] = Kind::Outer;
    }
  }
  const auto take = [&](const Ref& r) {
    if (kinds[r.index] != Kind::Outer) return;
    if (std::ranges::find(stretch.inputs, r) == stretch.inputs.end()) stretch.inputs.push_back(r);
  };
  for (size_t i = first; i < kinds.size(); ++i) {
    if (!is_needed[i] || is_input[i] || kinds[i] == Kind::Outer) continue;
    stretch.calls.push_back(static_cast<uint32_t>(i - first));
    for (const Ref& r : function_.operands_of(function_.calls[i - first])) take(r);
  }
  for (const Ref& output : stretch.outputs) take(output);
}

void MarkedCalls::drop_nested() {
  std::unordered_set<const Composite*> nested;
  for (const auto& outer : composites_) {
    const std::unordered_set<uint32_t> calls(outer->stretch.calls.begin(),
                                             outer->stretch.calls.end());
    for (const auto& inner : composites_) {
      if (inner != outer && calls.contains(inner->marks[0])) nested.insert(inner.get());
    }
  }
  std::erase_if(composites_, [&](const auto& c) { return nested.contains(c.get()); });
  for (const auto& composite : composites_) {
    for (const uint32_t mark : composite->marks) owner_[mark] = composite.get();
  }
}

// As the calls were recorded, but what a composite takes comes before all of it. Calls inside of
// one that others use, too, are computed twice.
void MarkedCalls::order() {
  if (composites_.empty()) {
    for (uint32_t c = 0; c < function_.calls.size(); ++c) steps_.push_back({c, nullptr});
    return;
  }
  enum class State : uint8_t { Open, Begun, Done };
  std::vector<State> states(function_.calls.size());
  std::unordered_map<const Composite*, State> of_composite;
  const auto state_of = [&](const Step& step) -> State& {
    return step.composite != nullptr ? of_composite[step.composite] : states[step.call];
  };
  std::vector<std::pair<Step, size_t>> stack;
  const auto enter = [&](const Ref& r) {
    if (!r || function_.is_parameter(r)) return;
    const auto call = static_cast<uint32_t>(function_.call_of(r));
    const auto owner = owner_.find(call);
    const Step step{call, owner == owner_.end() ? nullptr : owner->second};
    State& state = state_of(step);
    TXLA_CHECK_KIND(util::ErrorKind::Value, state != State::Begun,
                    step.composite == nullptr ? "composite" : step.composite->name,
                    ": expected inputs that do not need its outputs. Mark all inputs before what "
                    "is computed of them.");
    if (state == State::Done) return;
    state = State::Begun;
    stack.emplace_back(step, 0);
  };
  // From the results, so that what only composites compute is left out.
  for (const Ref& result : function_.results) {
    enter(result);
    while (!stack.empty()) {
      auto& [step, next] = stack.back();
      const std::span<const Ref> reads = step.composite != nullptr
                                             ? std::span<const Ref>(step.composite->stretch.inputs)
                                             : function_.operands_of(function_.calls[step.call]);
      if (next < reads.size()) {
        enter(reads[next++]);  // may move the stack
        continue;
      }
      state_of(step) = State::Done;
      steps_.push_back(step);
      stack.pop_back();
    }
  }
}

}  // namespace torch_xla::executor
