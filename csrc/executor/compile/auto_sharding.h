// Splits values among the devices as a planner chooses, where the user has asked for that
// (use_spmd(auto=True)). The planner reads a program and says how its data and the results of its
// calls are to be split; plans are kept by the structure of graphs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "executor/program/interface.h"
#include "util/hash.h"

namespace torch_xla::executor {

struct SplitPlan {
  const spmd::Mesh* mesh = nullptr;            // null: nothing is split
  std::vector<const spmd::Sharding*> leaves;   // of each parameter; null: it stays as it is
  std::shared_ptr<const ValueSplits> results;  // of calls
};

// The planner's view of a graph.
struct PlanRequest {
  util::Hash128 structure;
  std::string platform;  // of the devices
  size_t num_devices = 0;
  std::string text;                           // describe()
  std::vector<const spmd::Sharding*> leaves;  // how each parameter is split now
  std::vector<int32_t> replaces;  // of each result, the parameter that it takes the place of, or -1
};

using SplitPlanner = std::function<SplitPlan(const PlanRequest&)>;

// From now on programs are split as `planner` says.
void set_split_planner(SplitPlanner planner);
// Returns whether they are: not where there is manual code, which no planner understands.
bool has_split_planner();
// Asks it. There is one.
SplitPlan ask_split_planner(const PlanRequest& request);
// Asks it for the plan of graphs, which plan_of() gives from now on.
void make_plan(const PlanRequest& request);

// Returns the plan for graphs of this structure, null where there is none or no planner. The caller
// holds the GraphLock.
std::shared_ptr<const SplitPlan> plan_of(const util::Hash128& structure);

}  // namespace torch_xla::executor
