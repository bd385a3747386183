#include "dispatch/sharding/mark_sharding.h"

#include <utility>

#include "debug/metrics.h"
#include "dispatch/calls/call.h"
#include "executor/run/runtime.h"
#include "executor/run/transfer.h"
#include "executor/step/read.h"
#include "lazy/tensor.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

void expect_of_all(const spmd::Sharding* present, const char* who) {
  TXLA_CHECK_KIND(util::ErrorKind::Value, present == nullptr || !present->is_manual, who,
                  ": expected a value of all devices, got a manual one, of which each has its own. "
                  "Use disable_manual_sharding first.");
}

void check(const at::Tensor& tensor, const spmd::Sharding* sharding, const char* who) {
  TXLA_CHECK(executor::is_spmd(), who,
             ": expected SPMD mode, where all devices are one. Call "
             "torch_xla.runtime.use_spmd() first.");
  TXLA_CHECK_KIND(util::ErrorKind::Value, !sharding->is_manual, who,
                  ": expected a sharding that splits a value, got {manual}. Use "
                  "_mark_manual_sharding.");
  const size_t devices = executor::Runtime::get().devices(0).all.size();
  TXLA_CHECK_KIND(util::ErrorKind::Value, sharding->num_devices() == devices, who,
                  ": expected a mesh of the ", devices, " devices of SPMD mode, got one of ",
                  sharding->num_devices(), ": ", sharding->mesh->text, ".");
  TXLA_CHECK_KIND(
      util::ErrorKind::Value, static_cast<int64_t>(sharding->dims.size()) == tensor.dim(), who,
      ": expected a partition spec with an entry for each of the ", tensor.dim(),
      " dimensions of the tensor, got ", sharding->dims.size(), ": ", sharding->shardy(), ".");
  if (spmd::Sharding::any_manual()) expect_of_all(sharding_of(tensor), who);
}

void say(lazy::Storage& storage, const spmd::Sharding* sharding) {
  if (storage.sharding() == sharding) return;
  static const debug::Counter shardings("SetShardingSpec");
  shardings.add();
  storage.set_sharding(sharding);
}

// Returns true for a tensor that is all of its storage, as it lies there.
bool is_whole(const lazy::TensorImpl& impl) {
  return impl.view() == nullptr && impl.geometry() == &impl.lazy_storage().geometry();
}

bool is_known(const lazy::Value& value) {
  return value.node->is_data() && value.node->data().array != nullptr;
}

// Takes `sharding` for the present value. A read that waits is outside of the lock. Returns whether
// a call was recorded for that.
bool split(lazy::TensorImpl& impl, const spmd::Sharding* sharding) {
  lazy::Value value;
  {
    const lazy::GraphLock lock;
    value = impl.read();
  }
  const int device = impl.device_index();
  if (is_known(value) && is_whole(impl) &&
      (executor::has_all_parts(value) || executor::sharding_of(value) == sharding)) {
    lazy::Value split = executor::reshard(value, device, sharding);
    const lazy::GraphLock lock;
    if (split == value) return false;
    static const debug::Counter splits("VirtualDeviceUsage");
    splits.add();
    impl.lazy_storage().set_value(std::move(split));
    return false;
  }
  const lazy::GraphLock lock;
  const lazy::Geometry& g = *impl.geometry();
  write(impl, call("torch_xla::sharding_constraint", device, {value, c10::IValue(sharding->text)},
                   lazy::intern_contiguous(g.dtype, g.sizes)));
  return true;
}

}  // namespace

void mark_sharding(const at::Tensor& tensor, const spmd::Sharding* sharding) {
  lazy::TensorImpl& impl = lazy::expect_lazy(tensor, "mark_sharding");
  check(tensor, sharding, "mark_sharding");
  // A tensor without a value (torch.empty) is split when it gets one.
  const bool has_value = !is_whole(impl) || impl.lazy_storage().has_value();
  if (has_value && split(impl, sharding)) {
    static const debug::Counter counter("XlaAnnotateCustomSharding");
    counter.add();
  }
  const lazy::GraphLock lock;
  if (is_whole(impl)) say(impl.lazy_storage(), sharding);
}

void expect_unmarked(const at::Tensor& tensor, const spmd::Sharding* sharding) {
  lazy::TensorImpl& impl = lazy::expect_lazy(tensor, "mark_sharding");
  const lazy::GraphLock lock;
  const spmd::Sharding* asked = asked_sharding(impl);
  if (asked == nullptr || asked == sharding || asked->is_replicated()) return;
  lazy::Storage& storage = impl.lazy_storage();
  if (!storage.has_value() || !is_known(storage.value())) return;
  TXLA_CHECK(asked->gspmd() == sharding->gspmd(),
             "mark_sharding: Existing annotation must be cleared first: expected a tensor that is "
             "not split otherwise, got one that is split as ",
             asked->gspmd(), ", for ", sharding->gspmd(), ". Call clear_sharding() before.");
}

void annotate_sharding(const at::Tensor& tensor, const spmd::Sharding* sharding) {
  lazy::TensorImpl& impl = lazy::expect_lazy(tensor, "annotate_custom_sharding");
  check(tensor, sharding, "annotate_custom_sharding");
  split(impl, sharding);
}

void mark_manual(const at::Tensor& tensor, const spmd::Sharding* sharding) {
  constexpr const char* kWho = "_mark_manual_sharding";
  lazy::TensorImpl& impl = lazy::expect_lazy(tensor, kWho);
  TXLA_CHECK(executor::is_spmd(), kWho,
             ": expected SPMD mode, where all devices are one. Call "
             "torch_xla.runtime.use_spmd() first.");
  const lazy::GraphLock lock;
  TXLA_CHECK_KIND(util::ErrorKind::Value, asked_sharding(impl) == nullptr, kWho,
                  ": expected a tensor that mark_sharding has not split, got one. Use "
                  "enable_manual_sharding, or clear_sharding first.");
  TXLA_CHECK(!impl.lazy_storage().has_value() || !impl.lazy_storage().value().node->is_data(), kWho,
             ": Marking any data tensors as manual is not supported: expected a value that waits "
             "to be computed, got data. Use enable_manual_sharding.");
  const lazy::Geometry& g = *impl.geometry();
  write(impl, call("torch_xla::mark_manual", impl.device_index(),
                   {impl.read(), c10::IValue(sharding->text)},
                   lazy::intern_contiguous(g.dtype, g.sizes)));
}

void clear_sharding(const at::Tensor& tensor) {
  lazy::TensorImpl& impl = lazy::expect_lazy(tensor, "clear_sharding");
  const spmd::Sharding* present = sharding_of(tensor);
  if (present == nullptr) return;
  expect_of_all(present, "clear_sharding");
  {
    const lazy::GraphLock lock;
    impl.lazy_storage().set_sharding(nullptr);
  }
  split(impl, spmd::Sharding::replicated(present->mesh, present->dims.size()));
}

void split_like(const at::Tensor& model, const at::Tensor& made) {
  const lazy::TensorImpl* from = lazy::as_lazy(model);
  const lazy::TensorImpl* to = lazy::as_lazy(made);
  if (from == nullptr || to == nullptr) return;
  if (const spmd::Sharding* s = asked_sharding(*from)) say(to->lazy_storage(), s);
}

const spmd::Sharding* asked_sharding(const lazy::TensorImpl& impl) {
  return is_whole(impl) ? impl.lazy_storage().sharding() : nullptr;
}

const spmd::Sharding* sharding_of(const at::Tensor& tensor) {
  lazy::TensorImpl& impl = lazy::expect_lazy(tensor, "sharding_of");
  const lazy::GraphLock lock;
  const spmd::Sharding* asked = asked_sharding(impl);
  const bool may_be_manual = spmd::Sharding::any_manual() && impl.lazy_storage().has_value();
  if (asked != nullptr && !may_be_manual) return asked;
  const spmd::Sharding* present = executor::sharding_of(impl.read());
  return asked != nullptr && (present == nullptr || !present->is_manual) ? asked : present;
}

bool is_on_all_devices(const at::Tensor& tensor) {
  lazy::TensorImpl& impl = lazy::expect_lazy(tensor, "is_on_all_devices");
  const lazy::GraphLock lock;
  lazy::Storage& storage = impl.lazy_storage();
  if (!executor::is_spmd() || !is_whole(impl) || !storage.has_value()) return false;
  return is_known(storage.value()) && storage.value().node->data().array->num_buffers() != 0;
}

}  // namespace torch_xla::dispatch
