#include "executor/program/manual_run.h"

#include <set>
#include <unordered_set>

#include "ops/sharding_constraint.h"
#include "util/error.h"

namespace torch_xla::executor {

using lazy::Node;

bool is_manual_call(const Node& call, const ops::ManualValues& manual) {
  return manual.has_among_operands(call) &&
         ops::boundary_of(call.signature()) == ops::Boundary::None && !manual.mixes(call);
}

void expect_no_manual_results(const lazy::Function& function, const ops::ManualValues& manual) {
  for (const lazy::Value& v : function.results) {
    if (!v || !manual.contains(v)) continue;
    util::fail(util::ErrorKind::NotImplemented,
               "expected a function without manual values among its results, got one of the sizes ",
               at::IntArrayRef(v.geometry().sizes),
               ". Give it back through disable_manual_sharding.");
  }
}

namespace {

// What it expands to may say some, too.
void expect_no_shardings(const Node& call) {
  lazy::Function alone;
  alone.calls = {&call};
  ops::NamedShardings named;
  named.add(alone);
  TXLA_CHECK_KIND(util::ErrorKind::Value, named.all.empty(),
                  "mark_sharding or enable_manual_sharding: expected a value of all devices, got a "
                  "manual one, of which each has its own. Use disable_manual_sharding first.");
}

}  // namespace

ManualRun::ManualRun(std::span<const Node* const> all, ops::ManualValues& manual) {
  std::set<Result> seen;
  std::unordered_set<const Node*> made;
  for (const Node* call : all) {
    if (!is_manual_call(*call, manual)) break;
    expect_no_shardings(*call);
    for (const lazy::Value& v : call->operands()) {
      const Result input{v.node.get(), v.index};
      if (made.contains(input.node) || !seen.insert(input).second) continue;
      inputs.push_back(input);
      is_manual.push_back(manual.contains(v));
    }
    made.insert(call);
    manual.add_results_of(*call);
  }
  calls = all.first(made.size());
}

LastReads::LastReads(std::span<const Node* const> calls, std::span<const lazy::Value> results) {
  for (size_t i = 0; i < calls.size(); ++i) {
    for (const lazy::Value& operand : calls[i]->operands()) places_[operand.node.get()] = i;
  }
  for (const lazy::Value& result : results) places_[result.node.get()] = calls.size();
}

bool LastReads::is_read_after(const Node* node, size_t place) const {
  const auto last = places_.find(node);
  return last != places_.end() && last->second > place;
}

}  // namespace torch_xla::executor
