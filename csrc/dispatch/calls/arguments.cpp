#include "dispatch/calls/arguments.h"

#include <optional>

#include "lazy/operator.h"

namespace torch_xla::dispatch {

bool same_number(const c10::IValue& a, const c10::IValue& b) {
  if (a.isDouble() && b.isDouble()) return a.toDouble() == b.toDouble();
  if (a.isInt() && b.isInt()) return a.toInt() == b.toInt();
  if (a.isBool() && b.isBool()) return a.toBool() == b.toBool();
  return false;
}

namespace {

using lazy::Argument;

// Returns a number of the type that the schema asks for.
c10::IValue number_of(const at::Scalar& scalar, const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType) {
    return number_of(scalar, *type.expectRef<c10::OptionalType>().getElementType());
  }
  if (type.kind() == c10::TypeKind::FloatType) return scalar.toDouble();
  return scalar;
}

}  // namespace

torch::jit::Stack arguments_of(const lazy::Signature& s,
                               c10::function_ref<at::Tensor(size_t)> tensor,
                               c10::function_ref<at::Scalar(size_t)> number) {
  const auto& schema = s.op->schema().arguments();
  torch::jit::Stack stack;
  for (size_t i = 0; i < s.arguments.size(); ++i) {
    const Argument& a = s.arguments[i];
    const c10::Type& type = *schema[i].type();
    switch (a.kind) {
      case Argument::Kind::Static:
        stack.push_back(a.value);
        break;
      case Argument::Kind::None:  // None, or not given
        stack.push_back(type.kind() != c10::TypeKind::OptionalType
                            ? schema[i].default_value().value_or(c10::IValue())
                            : c10::IValue());
        break;
      case Argument::Kind::Tensor:
        stack.emplace_back(tensor(a.first));
        break;
      case Argument::Kind::Number: {
        if (type.kind() != c10::TypeKind::ListType) {
          stack.push_back(number_of(number(a.first), type));
          break;
        }
        c10::List<at::Scalar> numbers;
        for (uint32_t k = 0; k < a.count; ++k) numbers.push_back(number(a.first + k));
        stack.emplace_back(std::move(numbers));
        break;
      }
      case Argument::Kind::List: {
        uint32_t next = a.first;
        if (a.present.empty()) {
          c10::List<at::Tensor> list;
          for (uint32_t k = 0; k < a.count; ++k) list.push_back(tensor(next++));
          stack.emplace_back(std::move(list));
          break;
        }
        c10::List<std::optional<at::Tensor>> list;
        for (const bool present : a.present) {
          list.push_back(present ? std::optional(tensor(next++)) : std::nullopt);
        }
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  return stack;
}

}  // namespace torch_xla::dispatch
