#include "dispatch/record/traced_function.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include "debug/metrics.h"
#include "executor/compile/compile.h"
#include "executor/run/offers.h"
#include "executor/run/runtime.h"
#include "executor/step/sync.h"
#include "lazy/function.h"
#include "lazy/lending.h"
#include "lazy/signature.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::KeptFunction;
using lazy::Node;
using lazy::Storage;
using lazy::Value;

// How many functions have a signature of this key. Guarded by GraphLock.
std::unordered_map<util::Hash128, size_t, util::Hash128Hasher>& alive() {
  static auto& counts = *new std::unordered_map<util::Hash128, size_t, util::Hash128Hasher>;
  return counts;
}

}  // namespace

// Fills a TracedFunction step by step.
class TracedFunction::Tracer {
 public:
  Tracer(const Tensors& arguments, const Layout& given, int device)
      : given_(given), trace_(device) {
    traced_->arguments_ = Taken(given, arguments, device);
    for (const Storage* storage : given.storages) {
      storages_.push_back(trace_.parameter(&storage->geometry()));
    }
    stand_ins_ = traced_->arguments_.stand_ins(Storages(storages_.begin(), storages_.end()));
    versions_ = versions_of(stand_ins_);
  }

  // `captured` takes what the function reads beside its arguments.
  std::unique_ptr<TracedFunction> run(c10::function_ref<Tensors(const Tensors&)> body,
                                      std::vector<Value>& captured) {
    const Tensors results = body(stand_ins_);
    check_geometries();
    take_written();
    traced_->writes_ = traced_->arguments_.writes_since(versions_, stand_ins_);
    take_results(results);
    FunctionTrace::Recorded recorded = trace_.finish();
    if (!recorded.function->results.empty()) {
      traced_->signature_ = recorded.signature();
      ++alive()[traced_->signature_->key];
    }
    captured = std::move(recorded.captured);
    traced_->draws_ = std::move(recorded.draws);
    return std::move(traced_);
  }

 private:
  void check_geometries() const {
    for (size_t i = 0; i < stand_ins_.size(); ++i) {
      const lazy::TensorImpl& impl = *lazy::as_lazy(stand_ins_[i]);
      const Place& place = given_.places[i];
      const Storage* storage = storages_[place.storage].get();
      TXLA_CHECK(impl.geometry() == place.geometry && impl.storage_offset() == place.offset &&
                     &impl.lazy_storage() == storage &&
                     &storage->geometry() == traced_->arguments_.storages[place.storage],
                 "traced function: changes the geometry of its argument ", i, ".");
    }
  }

  void take_written() {
    for (size_t i = 0; i < storages_.size(); ++i) {
      if (executor::is_offered(trace_.placeholder(i))) {
        traced_->offered_.push_back(i);
        executor::offer(trace_.placeholder(i), false);
      }
      if (!trace_.is_written(i)) continue;
      traced_->written_.push_back(i);
      trace_.result(storages_[i]->value());
    }
  }

  void take_results(const Tensors& results) {
    Tensors defined = stand_ins_;
    std::ranges::copy_if(results, std::back_inserter(defined), &at::Tensor::defined);
    const Layout all(defined);
    const int device = traced_->arguments_.device;
    for (size_t i = storages_.size(); i < all.storages.size(); ++i) {
      TXLA_CHECK(all.storages[i]->device_index() == device, "traced function: expected results on ",
                 "xla:", device, ", got one on xla:", all.storages[i]->device_index(), ".");
      traced_->made_.push_back(&all.storages[i]->geometry());
      trace_.result(all.storages[i]->value());
    }
    traced_->results_ = Given::of(results, stand_ins_, all);
  }

  const Layout& given_;
  FunctionTrace trace_;
  std::unique_ptr<TracedFunction> traced_ = std::make_unique<TracedFunction>();
  std::vector<c10::intrusive_ptr<Storage>> storages_;  // of the stand-ins
  Tensors stand_ins_;
  std::vector<uint32_t> versions_;
};

std::unique_ptr<TracedFunction> TracedFunction::trace(
    const Tensors& arguments, c10::function_ref<Tensors(const Tensors&)> body) {
  const Layout given(arguments);
  const int device =
      given.storages.empty() ? executor::current_device() : given.storages[0]->device_index();
  const lazy::GraphLock lock;
  // In inference mode no versions are counted, and a later call may be outside of it.
  std::optional<c10::InferenceMode> counted;
  if (c10::InferenceMode::is_enabled()) {
    counted.emplace(false);
    at::GradMode::set_enabled(false);
  }
  std::vector<Value> captured;
  auto traced = Tracer(arguments, given, device).run(body, captured);
  TXLA_CHECK(captured.empty() || !lazy::Lending::lives(),
             "traced function: expected its first call outside of a step that is being saved.");
  // As storages, so that whichever run computes what is pending gives it its data.
  for (Value& value : captured) {
    traced->constants_.push_back(
        c10::make_intrusive<Storage>(&value.geometry(), value.node->device(), value));
  }
  return traced;
}

TracedFunction::~TracedFunction() {
  if (!signature_.defined()) return;
  const lazy::GraphLock lock;
  const auto count = alive().find(signature_->key);
  if (--count->second > 0) return;
  alive().erase(count);
  executor::drop_programs_with(signature_->key);
}

Tensors TracedFunction::call(const Tensors& arguments, Launching& launching) const {
  for (const at::Tensor& tensor : arguments) lazy::ReadLog::note(*lazy::as_lazy(tensor));
  Storages storages = arguments_.storages_of(arguments);
  static const debug::Counter counter("xla::traced_function");
  counter.add();
  const int device = arguments_.device;
  // A region of torch_xla.compile runs as one.
  const bool is_apart = executor::Region::current() == nullptr && !is_recording_function();
  if (is_apart) launching.before_call(device);
  std::vector<Value> computed;
  {
    const lazy::GraphLock lock;
    c10::intrusive_ptr<Node> node;
    if (signature_.defined()) {
      static const debug::Metric time("RunCachedGraphInputData");
      const debug::TimedScope scope(time);
      for (const size_t i : offered_) {
        executor::offer(static_cast<Storage&>(*storages[i]).value(), true);
      }
      lazy::Operands operands;
      for (const auto& storage : storages) {
        operands.push_back(static_cast<Storage&>(*storage).value());
      }
      for (const auto& constant : constants_) operands.push_back(constant->value());
      node = lazy::make_node(signature_, std::move(operands), draws_.draw(device), device);
      computed.push_back({node, 0});
    }
    static const debug::Metric time("RunCachedGraphOutputData");
    std::optional<debug::TimedScope> scope;
    if (signature_.defined()) scope.emplace(time);
    uint32_t result = 0;
    for (const size_t i : written_) {
      static_cast<Storage&>(*storages[i]).set_value({node, result++});
    }
    for (const Geometry* geometry : made_) {
      storages.push_back(c10::make_intrusive<Storage>(geometry, device, Value{node, result++}));
    }
  }
  bump_versions(arguments, writes_);
  Tensors results = Given::tensors(results_, arguments, storages);
  storages.clear();
  if (is_apart && launching.at_once() && !computed.empty()) {
    executor::materialize(computed, device, executor::kDynamo);
  }
  return results;
}

}  // namespace torch_xla::dispatch
