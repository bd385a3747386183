#include "dispatch/record/traced_function.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "debug/metrics.h"
#include "executor/compile.h"
#include "executor/runtime.h"
#include "executor/sync.h"
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
using lazy::View;

const lazy::TensorImpl& lazy_of(const at::Tensor& tensor) {
  const lazy::TensorImpl* impl = lazy::as_lazy(tensor);
  TXLA_CHECK(impl != nullptr, "traced function: expected xla tensors, got one on ", tensor.device(),
             ".");
  return *impl;
}

// Equal chains of views show the same elements of a storage.
bool same_view(const View* a, const View* b) {
  for (; a != b; a = a->parent().get(), b = b->parent().get()) {
    if (a == nullptr || b == nullptr || a->step() != b->step() || a->index() != b->index()) {
      return false;
    }
  }
  return true;
}

// A view object belongs to one storage.
// Without recursion: chains may be long.
c10::intrusive_ptr<View> copy_of(const View* view) {
  std::vector<const View*> chain;
  for (; view != nullptr; view = view->parent().get()) chain.push_back(view);
  c10::intrusive_ptr<View> copy;
  for (; !chain.empty(); chain.pop_back()) {
    const View& step = *chain.back();
    copy = c10::make_intrusive<View>(std::move(copy), step.step(), step.index(), step.offset());
  }
  return copy;
}

// How many functions have a signature of this key. Guarded by GraphLock.
std::unordered_map<util::Hash128, size_t, util::Hash128Hasher>& alive() {
  static auto& counts = *new std::unordered_map<util::Hash128, size_t, util::Hash128Hasher>;
  return counts;
}

}  // namespace

TracedFunction::Layout TracedFunction::layout_of(const Tensors& tensors) {
  Layout layout;
  for (const at::Tensor& tensor : tensors) {
    const lazy::TensorImpl& impl = lazy_of(tensor);
    Storage* storage = &impl.lazy_storage();
    const auto known = std::ranges::find(layout.storages, storage);
    layout.places.push_back({static_cast<size_t>(known - layout.storages.begin()), impl.geometry(),
                             impl.storage_offset(), impl.view()});
    if (known == layout.storages.end()) layout.storages.push_back(storage);
  }
  return layout;
}

at::Tensor TracedFunction::at_place(const Place& place,
                                    c10::intrusive_ptr<c10::StorageImpl> storage) {
  return at::Tensor(c10::make_intrusive<lazy::TensorImpl>(std::move(storage), place.geometry,
                                                          place.offset, copy_of(place.view.get())));
}

// Fills a TracedFunction step by step.
class TracedFunction::Tracer {
 public:
  Tracer(const Tensors& arguments, const Layout& given, int device)
      : given_(given), trace_(device) {
    traced_->device_ = device;
    for (const at::Tensor& t : arguments) {
      TXLA_CHECK(!t.is_conj() && !t.is_neg(), "traced function: expected tensors as they lie.");
    }
    for (const Storage* storage : given.storages) {
      storages_.push_back(trace_.parameter(&storage->geometry()));
      traced_->storages_.push_back(&storage->geometry());
    }
    for (const Place& place : given.places) {
      stand_ins_.push_back(at_place(place, storages_[place.storage]));
      traced_->arguments_.push_back(own(place));
    }
  }

  // `captured` takes what the function reads beside its arguments.
  std::unique_ptr<TracedFunction> run(c10::function_ref<Tensors(const Tensors&)> body,
                                      std::vector<Value>& captured) {
    const Tensors results = body(stand_ins_);
    check_geometries();
    take_written();
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
  static Place own(const Place& place) {
    return {place.storage, place.geometry, place.offset, copy_of(place.view.get())};
  }

  void check_geometries() const {
    for (size_t i = 0; i < stand_ins_.size(); ++i) {
      const lazy::TensorImpl& impl = lazy_of(stand_ins_[i]);
      const Place& place = given_.places[i];
      const Storage* storage = storages_[place.storage].get();
      TXLA_CHECK(impl.geometry() == place.geometry && impl.storage_offset() == place.offset &&
                     &impl.lazy_storage() == storage &&
                     &storage->geometry() == traced_->storages_[place.storage],
                 "traced function: changes the geometry of its argument ", i, ".");
    }
  }

  void take_written() {
    for (size_t i = 0; i < storages_.size(); ++i) {
      if (!trace_.is_written(i)) continue;
      traced_->written_.push_back(i);
      trace_.result(storages_[i]->value());
    }
  }

  void take_results(const Tensors& results) {
    Tensors defined = stand_ins_;
    std::ranges::copy_if(results, std::back_inserter(defined), &at::Tensor::defined);
    const Layout all = layout_of(defined);
    for (size_t i = storages_.size(); i < all.storages.size(); ++i) {
      TXLA_CHECK(all.storages[i]->device_index() == traced_->device_,
                 "traced function: expected results on xla:", traced_->device_,
                 ", got one on xla:", all.storages[i]->device_index(), ".");
      traced_->made_.push_back(&all.storages[i]->geometry());
      trace_.result(all.storages[i]->value());
    }
    size_t next = stand_ins_.size();
    for (const at::Tensor& t : results) {
      Result result{t.defined() ? Result::Kind::Place : Result::Kind::Undefined};
      if (t.defined()) {
        TXLA_CHECK(!t.is_conj() && !t.is_neg(), "traced function: expected results as they lie.");
        result.place = own(all.places[next++]);
        const auto same = std::ranges::find_if(stand_ins_, [&](auto& s) { return s.is_same(t); });
        result.argument = static_cast<size_t>(same - stand_ins_.begin());
        if (same != stand_ins_.end()) result.kind = Result::Kind::Argument;
      }
      traced_->results_.push_back(std::move(result));
    }
  }

  const Layout& given_;
  FunctionTrace trace_;
  std::unique_ptr<TracedFunction> traced_ = std::make_unique<TracedFunction>();
  std::vector<c10::intrusive_ptr<Storage>> storages_;  // of the stand-ins
  Tensors stand_ins_;
};

std::unique_ptr<TracedFunction> TracedFunction::trace(
    const Tensors& arguments, c10::function_ref<Tensors(const Tensors&)> body) {
  const Layout given = layout_of(arguments);
  const int device =
      given.storages.empty() ? executor::current_device() : given.storages[0]->device_index();
  for (const Storage* storage : given.storages) {
    TXLA_CHECK(storage->device_index() == device,
               "traced function: expected tensors of one device, got xla:", device,
               " and xla:", storage->device_index(), ".");
  }
  const lazy::GraphLock lock;
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

bool TracedFunction::fits(const Tensors& arguments) const {
  if (arguments.size() != arguments_.size()) return false;
  c10::SmallVector<const Storage*, 16> storages;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const lazy::TensorImpl* impl = lazy::as_lazy(arguments[i]);
    const Place& place = arguments_[i];
    if (impl == nullptr || impl->geometry() != place.geometry ||
        impl->storage_offset() != place.offset || impl->is_conj() || impl->is_neg()) {
      return false;
    }
    const Storage& storage = impl->lazy_storage();
    if (place.storage == storages.size()) {
      if (storage.device_index() != device_ || &storage.geometry() != storages_[place.storage]) {
        return false;
      }
      storages.push_back(&storage);
    } else if (storages[place.storage] != &storage) {
      return false;
    }
    if (!same_view(impl->view().get(), place.view.get())) return false;
  }
  // Storages that the function takes for different ones must be.
  std::ranges::sort(storages);
  return std::ranges::adjacent_find(storages) == storages.end();
}

TracedFunction::Tensors TracedFunction::call(const Tensors& arguments, bool launches) const {
  std::vector<c10::intrusive_ptr<c10::StorageImpl>> storages(storages_.size());
  for (size_t i = 0; i < arguments.size(); ++i) {
    lazy::ReadLog::note(*lazy::as_lazy(arguments[i]));
    auto& storage = storages[arguments_[i].storage];
    if (!storage.defined()) {
      storage = c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(
          &lazy::as_lazy(arguments[i])->lazy_storage());
    }
  }
  static const debug::Counter counter("xla::traced_function");
  counter.add();
  std::vector<Value> computed;
  {
    const lazy::GraphLock lock;
    c10::intrusive_ptr<Node> node;
    if (signature_.defined()) {
      lazy::Operands operands;
      for (const auto& storage : storages) {
        operands.push_back(static_cast<Storage&>(*storage).value());
      }
      for (const auto& constant : constants_) operands.push_back(constant->value());
      node = lazy::make_node(signature_, std::move(operands), draws_.draw(device_), device_);
      computed.push_back({node, 0});
    }
    uint32_t result = 0;
    for (const size_t i : written_) {
      static_cast<Storage&>(*storages[i]).set_value({node, result++});
    }
    for (const Geometry* geometry : made_) {
      storages.push_back(c10::make_intrusive<Storage>(geometry, device_, Value{node, result++}));
    }
  }
  for (const size_t written : written_) {
    for (size_t i = 0; i < arguments.size(); ++i) {
      at::TensorImpl* impl = arguments[i].unsafeGetTensorImpl();
      if (arguments_[i].storage == written && !impl->is_inference()) impl->bump_version();
    }
  }
  Tensors results;
  for (const Result& r : results_) {
    switch (r.kind) {
      case Result::Kind::Undefined:
        results.emplace_back();
        break;
      case Result::Kind::Argument:
        results.push_back(arguments[r.argument]);
        break;
      case Result::Kind::Place:
        results.push_back(at_place(r.place, storages[r.place.storage]));
        break;
    }
  }
  storages.clear();
  // A region of torch_xla.compile runs as one.
  launches &= executor::Region::current() == nullptr && !is_recording_function();
  if (launches && !computed.empty()) {
    executor::materialize(computed, device_);
  }
  return results;
}

}  // namespace torch_xla::dispatch
