// Puts a kernel on the XLA key for every operator that needs one and has none by then: the
// recorder, and for what cannot be recorded the host.
#include "dispatch/register.h"

#include <set>

#include <torch/library.h>

#include "dispatch/autocast.h"
#include "dispatch/calls/call.h"
#include "dispatch/composites/dropout.h"
#include "dispatch/composites/factory.h"
#include "dispatch/record/fallback.h"
#include "dispatch/record/list_write.h"
#include "dispatch/record/mask_index.h"
#include "dispatch/record/recorder.h"
#include "dispatch/record/unboxed.h"
#include "dispatch/replicas/exchange.h"
#include "dispatch/views/resize.h"
#include "dispatch/views/view_operators.h"
#include "lazy/tensor.h"
#include "ops/collectives.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

lazy::Value zeros(const lazy::Geometry& geometry, int device) {
  return call("aten::zeros", device,
              {c10::IValue(geometry.sizes), c10::IValue(static_cast<int64_t>(geometry.dtype))},
              lazy::intern_contiguous(geometry.dtype, geometry.sizes));
}

lazy::Value copy(const lazy::Value& value) {
  return call("aten::clone", value.node->device(), {value}, value.geometry().row_major());
}

const ops::Rules register_rules([](ops::Registry& r) {
  for (const char* name :
       {"aten::lift", "aten::lift_fresh", "aten::_fw_primal", "aten::_make_dual",
        "aten::_unpack_dual", "aten::new_empty", "aten::set_data", "aten::is_pinned",
        "aten::_pin_memory", "aten::_has_same_storage_numel"}) {
    r.all(name).stays_composite = true;
  }
});

bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& r : schema.returns()) {
    if (r.alias_info() != nullptr && !r.alias_info()->isWrite()) return true;
  }
  return false;
}

bool wants_recorder(const c10::OperatorHandle& op, const OperatorPlan& plan) {
  const bool has_rule = plan.target->rule != nullptr;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    // Its autograd would be lost, but where autograd has a formula of its own.
    return has_rule && op.hasKernelForDispatchKey(c10::DispatchKey::Autograd);
  }
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) return has_rule;
  return true;
}

std::set<std::string>& recorded() {
  static auto& names = *new std::set<std::string>;
  return names;
}

// Functional operators that calls of recorded ones become.
std::set<std::string>& targets() {
  static auto& names = *new std::set<std::string>;
  return names;
}

// Records every operator of the library's namespace that wants it.
void register_recorders(torch::Library& library, const std::string& prefix) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with(prefix)) continue;
    const auto op = dispatcher.findSchema(name);
    const std::string full = lazy::full_name(name);
    if (!op || ops::Registry::get().traits(name).stays_composite) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::XLA) || is_view(op->schema())) continue;
    std::unique_ptr<OperatorPlan> plan = make_plan(*op);
    const std::string local = full.substr(prefix.size());
    if (plan == nullptr) {
      // The fallback below serves the others.
      if (auto factory = FactoryOutKernel::make(*op)) {
        library.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(factory)));
      }
      continue;
    }
    if (!wants_recorder(*op, *plan)) continue;
    const bool takes_masks = plan->target->traits->takes_masks;
    const bool exchanges = ops::is_collective(*plan->target);
    const std::string target = plan->target->name;
    auto recorder = std::make_unique<Recorder>(*op, std::move(plan));
    recorded().insert(full);
    targets().insert(target);
    if (takes_masks) {
      library.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                      std::make_unique<MaskIndexKernel>(std::move(recorder))));
    } else if (exchanges) {
      library.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                      std::make_unique<CollectiveKernel>(std::move(recorder))));
    } else if (writes_list(*op)) {
      library.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                      std::make_unique<ListWriteKernel>(std::move(recorder))));
    } else if (std::optional<torch::CppFunction> kernel = unboxed(*op, recorder)) {
      library.impl(local.c_str(), std::move(*kernel));
    } else {
      library.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(recorder)));
    }
  }
}

void boxed_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  host_fallback(op, stack);
}

}  // namespace

bool is_recorded(const c10::OperatorHandle& op) {
  return recorded().count(lazy::full_name(op.operator_name())) != 0;
}

void register_kernels() {
  debug::counter("RegisterXLAFunctions")->add();
  debug::count_in("CreateXlaTensor", lazy::tensor_counts.made);
  for (const char* name : {"DestroyXlaTensor", "DestroyLtcTensor"}) {
    debug::count_in(name, lazy::tensor_counts.gone);
  }
  lazy::zeros_value = zeros;
  lazy::copy_value = copy;
  lazy::read_over = read_over;
  static auto& aten =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA, __FILE__, __LINE__);
  register_views(aten);
  register_factories(aten);
  register_dropout();
  register_autocast();
  register_recorders(aten, "aten::");
  static auto& own = *new torch::Library(torch::Library::IMPL, "torch_xla", c10::DispatchKey::XLA,
                                         __FILE__, __LINE__);
  register_recorders(own, "torch_xla::");
  static auto& all =
      *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::XLA, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}

void check_rules() {
  const ops::Registry& registry = ops::Registry::get();
  for (const std::string& name : registry.names()) {
    const c10::OperatorName op = lazy::operator_name(name);
    const auto handle = c10::Dispatcher::singleton().findSchema(op);
    TXLA_CHECK(handle.has_value(), name, ": a lowering of an operator that PyTorch does not have.");
    if (is_view(handle->schema())) {
      TXLA_CHECK(registry.traits(op).view.inverse != nullptr, name,
                 ": a lowering of a view that has no inverse, and so is never recorded.");
    } else {
      TXLA_CHECK(targets().contains(name) || registry.traits(op).recorded_by_name, name,
                 ": a lowering that no call reaches: the operator has another kernel, or is a "
                 "composite of others.");
    }
  }
}

}  // namespace torch_xla::dispatch
