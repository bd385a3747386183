#include "executor/compile/unplanned.h"

#include "executor/compile/graph.h"
#include "executor/program/lower.h"
#include "executor/run/array_types.h"
#include "executor/run/runtime.h"
#include "pjrt/buffer.h"

namespace torch_xla::executor {

Unplanned unplanned(const Graph& graph) {
  Unplanned all;
  const Runtime& runtime = Runtime::get();
  const size_t num_devices = runtime.devices(graph.device).all.size();
  if (num_devices == 1 || !has_split_planner()) return all;
  if (graph.plan == nullptr) {
    PlanRequest request;
    request.structure = graph.structure;
    request.platform = runtime.target().platform;
    request.num_devices = num_devices;
    request.text = describe(graph.function(), runtime.target(), num_devices);
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

}  // namespace torch_xla::executor
