#include "dispatch/record/value_checks.h"

namespace torch_xla::dispatch {
namespace {

// Copies a value; each tensor in it, in lists too, is replaced by what `change` makes of it.
c10::IValue with_tensors(const c10::IValue& value, const ValueCheckLog::StandIn& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (!value.isList()) return value;
  c10::impl::GenericList list = value.toList().copy();
  for (size_t i = 0; i < list.size(); ++i) list.set(i, with_tensors(list.get(i), change));
  return list;
}

}  // namespace

void ValueCheckLog::add(decltype(ValueCheck::suspects) suspects, const torch::jit::Stack& stack,
                        size_t base) {
  ValueCheck& check = checks_.emplace_back(ValueCheck{suspects, {}});
  for (size_t i = base; i < stack.size(); ++i) {
    check.arguments.push_back(with_tensors(stack[i], stand_in_));
  }
}

}  // namespace torch_xla::dispatch
