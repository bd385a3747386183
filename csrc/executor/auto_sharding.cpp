#include "executor/auto_sharding.h"

#include <unordered_map>

#include "executor/graph.h"
#include "executor/runtime.h"
#include "executor/transfer.h"
#include "lazy/lock.h"
#include "pjrt/buffer.h"

namespace torch_xla::executor {
namespace {

// A program for each shape of a batch; plans are a few KiB each.
constexpr size_t kMostPlans = 4096;

struct Plans {  // guarded by the graph lock
  SplitPlanner planner;
  std::unordered_map<util::Hash128, std::shared_ptr<const SplitPlan>, util::Hash128Hasher> made;
};

Plans& plans() {
  static auto& all = *new Plans;
  return all;
}

}  // namespace

void set_split_planner(SplitPlanner planner) {
  const lazy::GraphLock lock;
  plans().planner = std::move(planner);
  plans().made.clear();
}

bool has_split_planner() {
  const lazy::GraphLock lock;
  return plans().planner && !spmd::Sharding::any_manual();
}

SplitPlan ask_split_planner(const PlanRequest& request) {
  SplitPlanner planner;
  {
    const lazy::GraphLock lock;
    planner = plans().planner;
  }
  return planner(request);
}

std::shared_ptr<const SplitPlan> plan_of(const util::Hash128& structure) {
  if (!has_split_planner()) return nullptr;
  const auto it = plans().made.find(structure);
  return it == plans().made.end() ? nullptr : it->second;
}

Unplanned unplanned(const Graph& graph) {
  Unplanned all;
  const Runtime& runtime = Runtime::get();
  const size_t num_devices = runtime.devices(graph.device).size();
  if (num_devices == 1 || !has_split_planner()) return all;
  if (graph.plan == nullptr) {
    PlanRequest request;
    request.structure = graph.structure;
    request.platform = runtime.target().platform;
    request.num_devices = num_devices;
    request.text = describe(graph, runtime.target(), num_devices);
    for (const lazy::Node* leaf : graph.parameters) {
      request.leaves.push_back(leaf->data().array->sharding());
    }
    request.replaces = graph.replaces;
    all.request = std::make_unique<const PlanRequest>(std::move(request));
    return all;
  }
  for (size_t i = 0; i < graph.plan->leaves.size(); ++i) {
    const spmd::Sharding* wanted = graph.plan->leaves[i];
    const lazy::Node& leaf = *graph.parameters[i];
    if (wanted == nullptr || leaf.data().array->sharding() != nullptr) continue;
    if (held_sharding(wanted, leaf.output(0).sizes) == nullptr) continue;
    auto* node = const_cast<lazy::Node*>(&leaf);
    all.data.push_back({{c10::intrusive_ptr<lazy::Node>::reclaim_copy(node), 0}, wanted});
  }
  return all;
}

void carry_out(Unplanned unplanned, int device) {
  for (const auto& [value, sharding] : unplanned.data) split_data(value, device, sharding);
  if (unplanned.request == nullptr) return;
  auto plan = std::make_shared<const SplitPlan>(ask_split_planner(*unplanned.request));
  const lazy::GraphLock lock;
  if (plans().made.size() >= kMostPlans) plans().made.clear();
  plans().made[unplanned.request->structure] = std::move(plan);
}

}  // namespace torch_xla::executor
