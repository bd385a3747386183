#include "dispatch/calls/sharding.h"

#include <utility>

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/new_empty.h>
#include <torch/library.h>

#include "debug/metrics.h"
#include "dispatch/calls/call.h"
#include "dispatch/calls/own_operator.h"
#include "executor/run/runtime.h"
#include "executor/run/transfer.h"
#include "executor/step/read.h"
#include "lazy/tensor.h"
#include "ops/manual_sharding.h"
#include "ops/rules.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

at::Tensor same_shape(const at::Tensor& self, c10::string_view /*sharding*/) {
  return at::empty_like(self);
}

const OwnOperator sharding_constraint("sharding_constraint(Tensor self, str sharding) -> Tensor",
                                      same_shape, ops::rules::sharding_constraint);

enum class Sizes { DividedByParts, TimesParts };

at::Tensor resized(const at::Tensor& self, c10::string_view sharding, Sizes how, const char* who) {
  const spmd::Sharding* s = spmd::Sharding::find(std::string(sharding));
  c10::SymDimVector sizes(self.sym_sizes().begin(), self.sym_sizes().end());
  TXLA_CHECK_KIND(util::ErrorKind::Value, !s->is_manual && s->dims.size() == sizes.size(), who,
                  ": expected a sharding of the ", sizes.size(), " dimensions of the tensor, got ",
                  s->gspmd(), ".");
  const std::vector<int64_t> parts = s->parts();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (how == Sizes::TimesParts) {
      sizes[i] = sizes[i] * parts[i];
      continue;
    }
    TXLA_CHECK_KIND(util::ErrorKind::Value, sizes[i] % parts[i] == 0, who,
                    ": expected sizes that the numbers of parts ", at::IntArrayRef(parts),
                    " divide, got ", self.sym_sizes(), ".");
    sizes[i] = sizes[i] / parts[i];
  }
  return self.new_empty_symint(sizes);
}

at::Tensor part_of(const at::Tensor& self, c10::string_view sharding) {
  at::Tensor part = resized(self, sharding, Sizes::DividedByParts, "full_to_shard");
  // Makes any_manual() true before there is a call.
  spmd::Sharding::manual(spmd::Sharding::find(std::string(sharding))->mesh,
                         static_cast<size_t>(self.dim()));
  return part;
}

at::Tensor whole_of(const at::Tensor& self, c10::string_view sharding, bool /*sum*/) {
  return resized(self, sharding, Sizes::TimesParts, "shard_to_full");
}

const OwnOperator to_shard("full_to_shard(Tensor self, str sharding) -> Tensor", part_of,
                           ops::rules::full_to_shard);
const OwnOperator to_full("shard_to_full(Tensor self, str sharding, bool sum=False) -> Tensor",
                          whole_of, ops::rules::shard_to_full);
at::Tensor reduced(const at::Tensor& self, c10::string_view /*reduction*/, double /*scale*/,
                   c10::IntArrayRef /*members*/, int64_t /*size*/) {
  return at::empty_like(self);
}

at::Tensor scattered(const at::Tensor& self, c10::string_view /*reduction*/, double /*scale*/,
                     int64_t dim, c10::IntArrayRef /*members*/, int64_t size) {
  c10::SymDimVector sizes(self.sym_sizes().begin(), self.sym_sizes().end());
  sizes.at(dim) = sizes[dim] / size;
  return self.new_empty_symint(sizes);
}

at::Tensor gathered(const at::Tensor& self, int64_t dim, c10::IntArrayRef /*members*/,
                    int64_t size) {
  c10::SymDimVector sizes(self.sym_sizes().begin(), self.sym_sizes().end());
  sizes.at(dim) = sizes[dim] * size;
  return self.new_empty_symint(sizes);
}

const OwnOperator all_reduce(
    "manual_all_reduce(Tensor self, str reduction, float scale, int[] members, int size) -> Tensor",
    reduced, ops::rules::manual_all_reduce);
const OwnOperator reduce_scatter(
    "manual_reduce_scatter(Tensor self, str reduction, float scale, int dim, int[] members, "
    "int size) -> Tensor",
    scattered, ops::rules::manual_reduce_scatter);
const OwnOperator all_gather(
    "manual_all_gather(Tensor self, int dim, int[] members, int size) -> Tensor", gathered,
    ops::rules::manual_all_gather);
const OwnOperator to_manual("mark_manual(Tensor self, str sharding) -> Tensor", same_shape,
                            ops::rules::mark_manual);

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
  const size_t devices = executor::Runtime::get().devices(0).size();
  TXLA_CHECK_KIND(util::ErrorKind::Value, sharding->num_devices() == devices, who,
                  ": expected a mesh of the ", devices, " devices of this process, got one of ",
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

// Whether the tensor is all of its storage, as it lies there.
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
  if (is_known(value) && is_whole(impl)) {
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
  // What has no value yet (torch.empty) is split when it gets one.
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

at::Tensor full_to_shard(const at::Tensor& self, const spmd::Sharding& sharding) {
  return to_shard(self, sharding.text);
}

at::Tensor shard_to_full(const at::Tensor& self, const spmd::Sharding& sharding) {
  return to_full(self, sharding.text, false);
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

namespace {

at::Tensor& mark_sharding_(at::Tensor& self, c10::string_view sharding) {
  mark_sharding(self, spmd::Sharding::find(std::string(sharding)));
  return self;
}

at::Tensor& same_tensor(at::Tensor& self, c10::string_view /*sharding*/) { return self; }

// In a graph that nothing writes in, the tensor is another from here on. Its history is the same.
at::Tensor& mark_sharding_functional(at::Tensor& self, c10::string_view sharding) {
  namespace functional = at::functionalization::impl;
  TXLA_CHECK(functional::isFunctionalTensor(self),
             "mark_sharding_: expected a tensor that PyTorch's functionalization wraps.");
  functional::sync(self);
  at::Tensor split;
  {
    const at::AutoDispatchSkipFunctionalize below;
    split = sharding_constraint(functional::from_functional_tensor(self), sharding);
  }
  functional::replace_(self, split);
  functional::commit_update(self);
  functional::sync(self);
  return self;
}

}  // namespace

// mark_sharding() as graphs of torch.compile hold it.
TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  m.def("mark_sharding_(Tensor(a!) self, str sharding) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(torch_xla, XLA, m) { m.impl("mark_sharding_", mark_sharding_); }
TORCH_LIBRARY_IMPL(torch_xla, Meta, m) { m.impl("mark_sharding_", same_tensor); }
TORCH_LIBRARY_IMPL(torch_xla, Functionalize, m) {
  m.impl("mark_sharding_", mark_sharding_functional);
}
TORCH_LIBRARY_IMPL(torch_xla, Autograd, m) {
  m.impl("mark_sharding_", torch::CppFunction::makeFallthrough());
}

}  // namespace torch_xla::dispatch
