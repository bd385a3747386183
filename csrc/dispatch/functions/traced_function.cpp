#include "dispatch/functions/traced_function.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_map>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include "debug/metrics.h"
#include "dispatch/functions/recording.h"
#include "executor/compile/compile.h"
#include "executor/run/offers.h"
#include "executor/run/runtime.h"
#include "executor/step/sync.h"
#include "lazy/function.h"
#include "lazy/signature.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::Node;
using lazy::Storage;
using lazy::Value;

// Counts the functions that have a signature of this key. Guarded by GraphLock.
std::unordered_map<util::Hash128, size_t, util::Hash128Hasher>& alive() {
  static auto& counts = *new std::unordered_map<util::Hash128, size_t, util::Hash128Hasher>;
  return counts;
}

}  // namespace

// Fills a TracedFunction step by step.
class TracedFunction::Tracer {
 public:
  Tracer(const Tensors& arguments, const Aliasing& given, int device)
      : given_(given), recording_(device, {.may_exchange = true}) {
    traced_->arguments_ = ArgumentSpec(given, arguments, device);
    for (const Storage* storage : given.storages) {
      storages_.push_back(recording_.parameter(&storage->geometry()));
    }
    placeholders_ = traced_->arguments_.placeholders(Storages(storages_.begin(), storages_.end()));
    versions_ = versions_of(placeholders_);
  }

  // Ends the recording; `recorded` takes the function itself.
  std::unique_ptr<TracedFunction> run(Body body, RecordedFunction& recorded) {
    const Tensors results = body(placeholders_);
    check_geometries();
    take_written();
    traced_->writes_ = traced_->arguments_.writes_since(versions_, placeholders_);
    take_results(results);
    recorded = recording_.finish();
    return std::move(traced_);
  }

 private:
  void check_geometries() const {
    for (size_t i = 0; i < placeholders_.size(); ++i) {
      const lazy::TensorImpl& impl = *lazy::as_lazy(placeholders_[i]);
      const TensorView& view = given_.views[i];
      const Storage* storage = storages_[view.storage].get();
      TXLA_CHECK(impl.geometry() == view.geometry && impl.storage_offset() == view.offset &&
                     &impl.lazy_storage() == storage &&
                     &storage->geometry() == traced_->arguments_.storages[view.storage],
                 "traced function: changes the geometry of its argument ", i, ".");
    }
  }

  void take_written() {
    for (size_t i = 0; i < storages_.size(); ++i) {
      if (executor::is_offered(recording_.parameter_value(i))) {
        traced_->offered_.push_back(i);
        executor::offer(recording_.parameter_value(i), false);
      }
      if (!recording_.is_written(i)) continue;
      traced_->written_.push_back(i);
      recording_.result(storages_[i]->value());
    }
  }

  void take_results(const Tensors& given) {
    const Tensors results = with_bases(given, placeholders_);
    Tensors defined = placeholders_;
    std::ranges::copy_if(results, std::back_inserter(defined), &at::Tensor::defined);
    const Aliasing all(defined);
    const int device = traced_->arguments_.device;
    for (size_t i = storages_.size(); i < all.storages.size(); ++i) {
      TXLA_CHECK(all.storages[i]->device_index() == device, "traced function: expected results on ",
                 "xla:", device, ", got one on xla:", all.storages[i]->device_index(), ".");
      traced_->made_.push_back(&all.storages[i]->geometry());
      recording_.result(all.storages[i]->value());
    }
    traced_->results_ = ResultSpecs(results, given.size(), placeholders_, all);
  }

  const Aliasing& given_;
  Recording recording_;
  std::unique_ptr<TracedFunction> traced_ = std::make_unique<TracedFunction>();
  std::vector<c10::intrusive_ptr<Storage>> storages_;  // of the placeholders
  Tensors placeholders_;
  std::vector<uint32_t> versions_;
};

std::unique_ptr<TracedFunction> TracedFunction::trace(const Tensors& arguments, Body body) {
  const Aliasing given(arguments);
  const int device =
      given.storages.empty() ? executor::current_device() : given.storages[0]->device_index();
  const lazy::GraphLock lock;
  // In inference mode no versions are counted, and a later call may be outside of it.
  std::optional<c10::InferenceMode> counted;
  if (c10::InferenceMode::is_enabled()) {
    counted.emplace(false);
    at::GradMode::set_enabled(false);
  }
  RecordedFunction recorded;
  auto traced = Tracer(arguments, given, device).run(body, recorded);
  const lazy::Recording* outer = lazy::Recording::current();
  TXLA_CHECK(recorded.captured.empty() || outer == nullptr || !outer->lends_state(),
             "traced function: expected its first call outside of a step that is being saved.");
  if (recorded.function->results.empty()) return traced;
  traced->function_ = Callable(recorded, given.storages.size());
  ++alive()[traced->function_.signature().key];
  return traced;
}

TracedFunction::~TracedFunction() {
  if (!function_) return;
  const lazy::GraphLock lock;
  const util::Hash128& key = function_.signature().key;
  const auto count = alive().find(key);
  if (--count->second > 0) return;
  alive().erase(count);
  executor::drop_programs_with(key);
}

Tensors TracedFunction::call(const Tensors& arguments, Launching& launching) const {
  lazy::Recording* recording = lazy::Recording::current();
  if (recording != nullptr) {
    for (const at::Tensor& tensor : arguments) recording->before_read(*lazy::as_lazy(tensor));
  }
  Storages storages = arguments_.storages_of(arguments);
  static const debug::Counter counter("xla::traced_function");
  counter.add();
  const int device = arguments_.device;
  // A region of torch_xla.compile runs as one.
  const bool is_apart = executor::CompiledRegion::current() == nullptr && recording == nullptr;
  if (is_apart) launching.before_call(device);
  std::vector<Value> computed;
  {
    const lazy::GraphLock lock;
    c10::intrusive_ptr<Node> node;
    if (function_) {
      static const debug::Metric time("RunCachedGraphInputData");
      const debug::TimedScope scope(time);
      for (const size_t i : offered_) {
        executor::offer(static_cast<Storage&>(*storages[i]).value(), true);
      }
      std::vector<Value> given;
      for (const auto& storage : storages) given.push_back(static_cast<Storage&>(*storage).value());
      node = function_.call(given, device);
      computed.push_back({node, 0});
    }
    static const debug::Metric time("RunCachedGraphOutputData");
    std::optional<debug::TimedScope> scope;
    if (function_) scope.emplace(time);
    uint32_t result = 0;
    for (const size_t i : written_) {
      static_cast<Storage&>(*storages[i]).set_value({node, result++});
    }
    for (const Geometry* geometry : made_) {
      storages.push_back(c10::make_intrusive<Storage>(geometry, device, Value{node, result++}));
    }
  }
  bump_versions(arguments, writes_);
  Tensors results = results_.tensors(arguments, storages);
  storages.clear();
  if (is_apart && launching.at_once() && !computed.empty()) {
    executor::materialize(computed, device, executor::kDynamo);
  }
  return results;
}

}  // namespace torch_xla::dispatch
