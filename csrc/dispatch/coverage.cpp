#include "dispatch/coverage.h"

#include "dispatch/calls/plan.h"
#include "dispatch/record/decompose.h"
#include "dispatch/register.h"

namespace torch_xla::dispatch {

namespace {

// An operator with a kernel of ours that records another one goes the recorded one's way.
std::string_view own_way(const c10::OperatorHandle& op) {
  const std::string name = op.schema().name();
  constexpr std::string_view kAten = "aten::";
  if (!name.starts_with(kAten)) return "native";
  const auto twin =
      c10::Dispatcher::singleton().findSchema({"torch_xla::" + name.substr(kAten.size()), ""});
  return twin ? how_it_runs(*twin) : "native";
}

}  // namespace

std::string_view how_it_runs(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  const bool on_cpu = op.hasKernelForDispatchKey(DispatchKey::CPU);
  const std::unique_ptr<OperatorPlan> plan = make_plan(op);
  if (plan != nullptr && plan->target->rule != nullptr) return "native";
  if (!is_recorded(op)) {
    if (op.hasKernelForDispatchKey(DispatchKey::XLA)) return own_way(op);
    for (const DispatchKey key :
         {DispatchKey::CompositeImplicitAutograd, DispatchKey::CompositeExplicitAutograd,
          DispatchKey::CompositeExplicitAutogradNonFunctional}) {
      if (op.hasKernelForDispatchKey(key)) return "composite";
    }
    return on_cpu ? "host" : "none";
  }
  const lazy::Operator& target = *plan->target;
  if (has_decomposition(target)) return "decomposition";
  if (route_of(target) == Route::Record) return "host kernel";
  return on_cpu || target.handle.hasKernelForDispatchKey(DispatchKey::CPU) ? "host" : "none";
}

}  // namespace torch_xla::dispatch
