// Visits the arguments of a call that is to be recorded, and gives back those of a recorded one, in
// the order of the schema.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/util/FunctionRef.h>

#include "dispatch/calls/plan.h"
#include "lazy/signature.h"

namespace torch_xla::dispatch {

bool same_number(const c10::IValue& a, const c10::IValue& b);

// Returns the arguments of a recorded call: `tensor` gives those that are operands, by position,
// `number` those that are runtime numbers.
torch::jit::Stack arguments_of(const lazy::Signature& signature,
                               c10::function_ref<at::Tensor(size_t)> tensor,
                               c10::function_ref<at::Scalar(size_t)> number);

// Gives the arguments of a call, which begin at `base`, to `visitor` in the order of the schema:
//   none()                     not given, an undefined tensor, or a generator
//   tensor(t, argument)        a tensor; `argument` is its place in the schema
//   begin_list(size)           the next `size` elements, tensors or none, are one argument
//   number(v, plan)            a number that the program takes when it runs
//   begin_numbers(size)        the next `size` numbers are one argument
//   fixed(v)                   anything else, which is a part of the program
template <class Visitor>
void visit_arguments(const OperatorPlan& plan, const torch::jit::Stack& stack, size_t base,
                     Visitor& visitor) {
  const auto tensor = [&visitor](const c10::IValue& v, size_t argument) {
    if (v.isNone() || !v.toTensor().defined()) {
      visitor.none();
    } else {
      visitor.tensor(v.toTensor(), static_cast<int>(argument));
    }
  };
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    const c10::IValue& v = stack[base + i];
    const ArgumentPlan& argument = plan.arguments[i];
    switch (argument.type) {
      case ArgumentType::Tensor:
      case ArgumentType::OptionalTensor:
        tensor(v, i);
        break;
      case ArgumentType::TensorList:
      case ArgumentType::OptionalTensorList: {
        if (v.isNone()) {
          visitor.none();
          break;
        }
        const auto list = v.toListRef();
        visitor.begin_list(list.size());
        for (const c10::IValue& e : list) tensor(e, i);
        break;
      }
      case ArgumentType::Number:
      case ArgumentType::FloatNumber:
        if (v.isNone() || argument.static_number ||
            (argument.has_default && same_number(v, argument.fallback))) {
          visitor.fixed(v);
        } else {
          visitor.number(v, argument);
        }
        break;
      case ArgumentType::NumberList: {
        if (v.isNone() || argument.static_number) {
          visitor.fixed(v);
          break;
        }
        const auto list = v.toListRef();
        visitor.begin_numbers(list.size());
        for (const c10::IValue& e : list) visitor.number(e, argument);
        break;
      }
      case ArgumentType::Generator:
        visitor.none();
        break;
      case ArgumentType::Static:
        if (v.isNone()) {
          visitor.none();  // most are
        } else {
          visitor.fixed(v);
        }
        break;
    }
  }
}

}  // namespace torch_xla::dispatch
