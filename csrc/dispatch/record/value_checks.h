// Keeps the checks of values that calls have passed, so that they can be made again where the calls
// are recorded again.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "ops/traits.h"

namespace torch_xla::dispatch {

struct ValueCheck {
  bool (*suspects)(const ops::KnownArguments&);
  std::vector<c10::IValue> arguments;
};

// While it lives, keeps the checks that this thread makes.
class ValueCheckLog {
 public:
  // `stand_in` is kept in the place of each tensor, which may go.
  using StandIn = std::function<at::Tensor(const at::Tensor&)>;
  explicit ValueCheckLog(StandIn stand_in)
      : stand_in_(std::move(stand_in)), outer_(std::exchange(innermost_, this)) {}
  ~ValueCheckLog() { innermost_ = outer_; }
  ValueCheckLog(const ValueCheckLog&) = delete;
  ValueCheckLog& operator=(const ValueCheckLog&) = delete;

  static void note(decltype(ValueCheck::suspects) suspects, const torch::jit::Stack& stack,
                   size_t base) {
    if (innermost_ != nullptr) [[unlikely]]
      innermost_->add(suspects, stack, base);
  }
  const std::vector<ValueCheck>& checks() const { return checks_; }

 private:
  void add(decltype(ValueCheck::suspects) suspects, const torch::jit::Stack& stack, size_t base);

  const StandIn stand_in_;
  ValueCheckLog* const outer_;
  std::vector<ValueCheck> checks_;
  inline static thread_local ValueCheckLog* innermost_ = nullptr;
};

}  // namespace torch_xla::dispatch
