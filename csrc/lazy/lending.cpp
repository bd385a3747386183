#include "lazy/lending.h"

#include <utility>

#include "lazy/function.h"
#include "lazy/print.h"
#include "util/error.h"

namespace torch_xla::lazy {

Lending::Lending(int device, uint64_t newest)
    : device_(device),
      newest_(newest),
      scope_(Storage::AsideScope::present_),
      outer_(std::exchange(present_, this)) {}

Lending::~Lending() {
  present_ = outer_;
  for (Lent& lent : lent_) lent.storage->hold(std::move(lent.before));
}

void Lending::lend(Storage& storage) {
  if (storage.id_ > scope_ || places_.contains(&storage)) return;
  const Geometry& geometry = storage.geometry();
  TXLA_CHECK(storage.id_ <= newest_,
             "expected tensors that were there before the step, got one that an earlier call of "
             "the step has made (",
             types_of({&geometry}),
             "). What a call leaves for the next must be there already: run the step once before "
             "(an optimizer makes its state in the first step), write such tensors in place, and "
             "clear gradients within the step.");
  TXLA_CHECK(storage.device_index_ == device_, "expected tensors of xla:", device_,
             ", got one of xla:", storage.device_index_, ".");
  const Value& before = storage.value_;
  TXLA_CHECK(!before || before.node->is_data(),
             "expected a tensor that has been computed, got one that waits (",
             types_of({&geometry}),
             "). Call torch_xla.sync() before. What has no value after it was made by an earlier "
             "recording that was refused: make it anew.");
  places_.emplace(&storage, lent_.size());
  lent_.push_back({c10::intrusive_ptr<Storage>::reclaim_copy(&storage), before,
                   placeholder(geometry, device_)});
  storage.hold(lent_.back().placeholder);
}

bool Lending::write(Storage& storage) {
  // A function that is recorded within this one does not write what is not its own.
  if (present_ == nullptr || present_->scope_ != Storage::AsideScope::present_) return false;
  present_->lend(storage);
  return true;
}

}  // namespace torch_xla::lazy
