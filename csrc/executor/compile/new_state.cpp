#include "executor/compile/new_state.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "lazy/operator.h"
#include "lazy/tensor.h"
#include "ops/registry.h"

namespace torch_xla::executor {
namespace {

using lazy::Node;

uint64_t steps = 0;  // guarded by the graph lock

util::Hash128 place_of(const Node& call) {
  return util::Hasher().add(call.signature().key).add_bytes(call.source().str()).finish();
}

// Returns whether a place that makes a constant in this step did so in the step before; from then
// on it always has.
bool makes_in_each_step(const util::Hash128& place) {
  constexpr auto kEachStep = std::numeric_limits<uint64_t>::max();
  static auto& last = *new std::unordered_map<util::Hash128, uint64_t, util::Hash128Hasher>;
  constexpr size_t kMost = 1 << 16;
  if (last.size() == kMost) last.clear();
  const auto [it, is_first] = last.try_emplace(place, steps);
  if (!is_first && it->second != kEachStep) {
    it->second = steps - it->second <= 1 ? kEachStep : steps;
  }
  return it->second == kEachStep;
}

// Constants with which storages began that wait for the graph, and the geometries of those and of
// the storages that it updates.
struct Begun {
  std::vector<const Node*> constants;
  std::unordered_set<const lazy::Geometry*> made, updated;

  explicit Begun(const Graph& graph) {
    std::unordered_map<uint64_t, const Node*> candidates;
    for (const Node* call : graph.calls) {
      if (ops::is_constant(*call->signature().op)) candidates.emplace(call->id(), call);
    }
    if (candidates.empty()) return;
    std::unordered_set<uint64_t> leaves;
    for (const Node* leaf : graph.parameters) leaves.insert(leaf->id());
    lazy::Storage::for_each_pending(graph.device, [&](const lazy::Storage& storage) {
      if (storage.past().empty()) return;
      const uint64_t first = storage.past().front().node;
      if (const auto it = candidates.find(first); it != candidates.end()) {
        constants.push_back(it->second);
        made.insert(&storage.geometry());
      } else if (leaves.contains(first)) {
        updated.insert(&storage.geometry());
      }
    });
  }
};

}  // namespace

std::vector<lazy::Value> constants_of_new_state(const Graph& graph) {
  const Begun begun(graph);
  const auto is_updated = [&](const lazy::Geometry* g) { return begun.updated.contains(g); };
  if (std::ranges::none_of(begun.made, is_updated)) return {};
  // Lists of parameters have many constants of one place.
  std::unordered_map<util::Hash128, bool, util::Hash128Hasher> in_each_step;
  std::vector<lazy::Value> found;
  for (const Node* call : begun.constants) {
    const auto [it, is_first] = in_each_step.try_emplace(place_of(*call));
    if (is_first) it->second = makes_in_each_step(it->first);
    if (it->second) continue;
    found.push_back({c10::intrusive_ptr<Node>::reclaim_copy(const_cast<Node*>(call)), 0});
  }
  return found;
}

void count_update(const Graph& graph) {
  const auto updates = [](int32_t result) { return result >= 0; };
  if (std::ranges::any_of(graph.reused_by, updates)) ++steps;
}

}  // namespace torch_xla::executor
