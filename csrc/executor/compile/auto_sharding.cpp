#include "executor/compile/auto_sharding.h"

#include <unordered_map>

#include "lazy/lock.h"

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

void make_plan(const PlanRequest& request) {
  auto plan = std::make_shared<const SplitPlan>(ask_split_planner(request));
  const lazy::GraphLock lock;
  if (plans().made.size() >= kMostPlans) plans().made.clear();
  plans().made[request.structure] = std::move(plan);
}

}  // namespace torch_xla::executor
