// Tells what a graph lacks before it can run as a planner has split it (auto_sharding.h).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "executor/compile/auto_sharding.h"
#include "lazy/node.h"

namespace torch_xla::executor {

struct Graph;

// The obstacle to a run as it is planned: a plan that is not made yet, or data that is
// not split as the plan says.
struct Unplanned {
  std::unique_ptr<const PlanRequest> request;
  std::vector<std::pair<lazy::Value, const spmd::Sharding*>> data;

  explicit operator bool() const { return request != nullptr || !data.empty(); }
};
// The caller holds the GraphLock.
Unplanned unplanned(const Graph& graph);

}  // namespace torch_xla::executor
