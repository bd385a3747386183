#include "executor/new_state.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "lazy/operator.h"
#include "lazy/tensor.h"
#include "ops/registry.h"

namespace torch_xla::executor {
namespace {

using lazy::Node;

uint64_t runs = 0;  // guarded by the graph lock

// Returns whether the same was asked a step ago, and notes that it is asked.
bool was_just_asked(const util::Hash128& key) {
  static auto& asked = *new std::unordered_map<util::Hash128, uint64_t, util::Hash128Hasher>;
  constexpr size_t kMost = 1 << 14;
  constexpr uint64_t kStep = 2;  // runs: that of the constants, that of the step
  if (asked.size() == kMost) asked.clear();
  const auto [it, is_first] = asked.try_emplace(key, runs);
  return !is_first && runs - std::exchange(it->second, runs) <= kStep;
}

}  // namespace

std::vector<lazy::Value> constants_of_new_state(const Graph& graph) {
  std::unordered_map<uint64_t, const Node*> constants;
  for (const Node* call : graph.calls) {
    if (ops::is_constant(*call->signature().op)) constants.emplace(call->id(), call);
  }
  if (constants.empty()) return {};
  std::unordered_set<uint64_t> leaves;
  for (const Node* leaf : graph.parameters) leaves.insert(leaf->id());

  std::vector<lazy::Value> found;
  std::unordered_set<const lazy::Geometry*> made, updated;
  lazy::Storage::for_each_pending(graph.device, [&](const lazy::Storage& storage) {
    if (storage.past().empty()) return;
    const uint64_t first = storage.past().front().node;
    if (const auto it = constants.find(first); it != constants.end()) {
      found.push_back({c10::intrusive_ptr<Node>::reclaim_copy(const_cast<Node*>(it->second)), 0});
      made.insert(&storage.geometry());
    } else if (leaves.contains(first)) {
      updated.insert(&storage.geometry());
    }
  });
  const auto is_updated = [&](const lazy::Geometry* g) { return updated.contains(g); };
  if (std::ranges::none_of(made, is_updated) || was_just_asked(graph.key)) return {};
  return found;
}

void count_run() { ++runs; }

}  // namespace torch_xla::executor
