#include "dispatch/coverage.h"

#include "dispatch/decompose.h"
#include "dispatch/plan.h"
#include "dispatch/register.h"

namespace torch_xla::dispatch {

std::string_view how_it_runs(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  const bool on_cpu = op.hasKernelForDispatchKey(DispatchKey::CPU);
  const std::unique_ptr<Plan> plan = make_plan(op, nullptr);
  if (plan != nullptr && plan->target->rule != nullptr) return "native";
  if (!is_recorded(op)) {
    if (op.hasKernelForDispatchKey(DispatchKey::XLA)) return "native";
    for (const DispatchKey key :
         {DispatchKey::CompositeImplicitAutograd, DispatchKey::CompositeExplicitAutograd,
          DispatchKey::CompositeExplicitAutogradNonFunctional}) {
      if (op.hasKernelForDispatchKey(key)) return "composite";
    }
    return on_cpu ? "host" : "none";
  }
  const lazy::Operator& target = *plan->target;
  const Route route = route_of(target);
  if (route == Route::Inline || has_decomposition(target)) return "decomposition";
  if (route == Route::Record) return "host kernel";
  return on_cpu || target.handle.hasKernelForDispatchKey(DispatchKey::CPU) ? "host" : "none";
}

}  // namespace torch_xla::dispatch
