#include "dispatch/functions/recording.h"

#include <algorithm>

#include "dispatch/replicas/order.h"
#include "lazy/operator.h"
#include "lazy/print.h"
#include "lazy/source.h"
#include "ops/rules.h"
#include "util/error.h"

namespace torch_xla::dispatch {

using lazy::Node;
using lazy::Storage;

Recording::Recording(int device, Options options)
    : device_(device),
      options_(options),
      random_(lazy::Device::of(device).random),
      start_(random_.position()) {}

Recording::~Recording() {
  for (LentState& lent : lent_) lent.storage->hold(std::move(lent.before));
  random_.set(start_);
  if (options_.is_export) lazy::set_place({});  // that the body gave the recorder
}

c10::intrusive_ptr<Storage> Recording::parameter(const lazy::Geometry* geometry) {
  const lazy::Value leaf = lazy::placeholder(*geometry, device_);
  parameters_.push_back(leaf);
  storages_.push_back(c10::make_intrusive<Storage>(geometry, device_, leaf));
  return storages_.back();
}

at::Tensor Recording::placeholder(const lazy::Geometry* geometry) {
  return at::Tensor(c10::make_intrusive<lazy::TensorImpl>(parameter(geometry), geometry, 0,
                                                          c10::intrusive_ptr<lazy::View>()));
}

namespace {

// A sharding that mark_sharding() gives an argument constrains the values that the body reads.
bool is_split(lazy::Value value, const lazy::Value& argument) {
  while (value != argument && !value.node->is_data()) {
    const lazy::Operator& op = *value.node->signature().op;
    if (op.rule == nullptr || op.rule->lower != ops::rules::sharding_constraint) return false;
    value = value.node->operands()[0];
  }
  return value == argument;
}

}  // namespace

void Recording::check_unwritten(const char* name) const {
  for (size_t i = 0; i < storages_.size(); ++i) {
    TXLA_CHECK(is_split(storages_[i]->value(), parameter_value(i)), name,
               ": expected a body that does not write its arguments, got one that writes argument ",
               i, ".");
  }
}

Tensors Recording::take_reads() {
  notes_reads_ = false;
  return std::move(reads_);
}

lazy::Value* Recording::order_of_exchanges() {
  if (!options_.may_exchange) return nullptr;
  if (!order_) next_order_ = order_ = lazy::placeholder(*geometry_of_order(), device_);
  return &next_order_;
}

RecordedFunction Recording::finish() {
  RecordedFunction recorded;
  recorded.order = order_;
  if (order_) results_.push_back(std::move(next_order_));
  recorded.function = std::make_shared<lazy::Function>(lazy::function_of(
      parameters_, results_, [&](const Node& node) { return has_made(node.id()); },
      recorded.captured));
  recorded.draws = draws_of(*recorded.function);
  return recorded;
}

// A function that is recorded within this one lends nothing: it reads state as this one does.
void Recording::before_read(Storage& storage) {
  if (options_.lends) {
    lend(storage);
  } else {
    lazy::Recording::before_read(storage);
  }
}

void Recording::before_read(const lazy::TensorImpl& tensor) {
  lazy::Recording::before_read(tensor);
  if (!notes_reads_ || has_made(tensor.id())) return;
  const auto known = [&](const at::Tensor& t) { return t.unsafeGetTensorImpl() == &tensor; };
  if (std::ranges::any_of(reads_, known)) return;
  reads_.emplace_back(
      c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<lazy::TensorImpl*>(&tensor)));
}

bool Recording::lends(Storage& storage) {
  if (!options_.lends) return false;
  lend(storage);
  return true;
}

void Recording::lend(Storage& storage) {
  if (has_made(storage.id()) || places_.contains(&storage)) return;
  const lazy::Geometry& geometry = storage.geometry();
  TXLA_CHECK(storage.id() <= *options_.lends,
             "expected tensors that were there before the step, got one that an earlier call of "
             "the step has made (",
             lazy::types_of({&geometry}),
             "). What a call leaves for the next must be there already: run the step once before "
             "(an optimizer makes its state in the first step), write such tensors in place, and "
             "clear gradients within the step.");
  TXLA_CHECK(storage.device_index() == device_, "expected tensors of xla:", device_,
             ", got one of xla:", storage.device_index(), ".");
  const lazy::Value& before = storage.held();
  TXLA_CHECK(!before || before.node->is_data(),
             "expected a tensor that has been computed, got one that waits (",
             lazy::types_of({&geometry}),
             "). Call torch_xla.sync() before. What has no value after it was made by an earlier "
             "recording that was refused: make it anew.");
  places_.emplace(&storage, lent_.size());
  lent_.push_back({c10::intrusive_ptr<Storage>::reclaim_copy(&storage), before,
                   lazy::placeholder(geometry, device_)});
  storage.hold(lent_.back().placeholder);
}

RecordedFunction record(const char* name, int device, const Geometries& parameters, Body body,
                        Geometries& results) {
  Recording recording(device);
  Tensors arguments;
  for (const lazy::Geometry* g : parameters) arguments.push_back(recording.placeholder(g));
  const Tensors given = body(arguments);
  recording.check_unwritten(name);
  std::optional<int> expected = device;
  for (lazy::Value& value : values_of(name, given, expected)) recording.result(std::move(value));
  results = result_geometries(given);
  return recording.finish();
}

}  // namespace torch_xla::dispatch
