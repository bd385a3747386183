#include "executor/program/instantiate.h"

#include <utility>

namespace torch_xla::executor {

using lazy::Node;
using lazy::Value;

Instance instantiate(const Recipe& recipe, std::span<const Value> parameters,
                     std::span<const lazy::Numbers> numbers, int device,
                     std::span<const c10::intrusive_ptr<Node>> places) {
  Instance instance;
  const auto value_of = [&](const Recipe::Operand& operand) {
    return recipe.is_parameter(operand)
               ? parameters[operand.index]
               : Value{instance.calls[operand.index - recipe.num_parameters], operand.result};
  };
  for (size_t c = 0; c < recipe.calls.size(); ++c) {
    const Recipe::Call& call = recipe.calls[c];
    lazy::Operands operands;
    for (uint32_t i = 0; i < call.num_operands; ++i) {
      operands.push_back(value_of(recipe.operands[call.first_operand + i]));
    }
    lazy::Numbers own = numbers[c];
    c10::intrusive_ptr<Node> node;
    if (!places.empty() && places[c].defined()) {
      node = places[c];
      node->become_call(call.signature, std::move(operands), std::move(own));
    } else {
      node = c10::make_intrusive<Node>(call.signature, std::move(operands), std::move(own), device);
    }
    node->source() = call.source;
    instance.calls.push_back(std::move(node));
  }
  for (const Recipe::Operand& result : recipe.results) {
    instance.results.push_back(value_of(result));
  }
  return instance;
}

std::vector<lazy::Numbers> numbers_of(const lazy::Function& function) {
  std::vector<lazy::Numbers> numbers;
  numbers.reserve(function.calls.size());
  for (const Node* call : function.calls) numbers.push_back(call->numbers());
  return numbers;
}

}  // namespace torch_xla::executor
