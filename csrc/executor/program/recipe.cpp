#include "executor/program/recipe.h"

#include <unordered_map>

#include "lazy/operator.h"
#include "lazy/print.h"

namespace torch_xla::executor {

Recipe::Recipe(const lazy::Function& function) {
  std::unordered_map<const lazy::Node*, uint32_t> index;
  for (const lazy::Node* parameter : function.parameters) index.emplace(parameter, index.size());
  num_parameters = static_cast<uint32_t>(index.size());
  const auto operand_of = [&index](const lazy::Value& value) {
    return Operand{index.at(value.node.get()), value.index};
  };
  calls.reserve(function.calls.size());
  for (const lazy::Node* call : function.calls) {
    calls.push_back({call->shared_signature(), call->source(),
                     static_cast<uint32_t>(operands.size()),
                     static_cast<uint32_t>(call->operands().size())});
    for (const lazy::Value& operand : call->operands()) operands.push_back(operand_of(operand));
    index.emplace(call, index.size());
  }
  for (const lazy::Value& result : function.results) {
    if (result) results.push_back(operand_of(result));
  }
}

std::string Recipe::text_of(const Call& call, const std::string& operands) {
  std::string text = call.signature->op->name + "(" + operands + ") : ";
  text += lazy::types_of(call.signature->outputs);
  const std::string place = call.source.str();
  return place.empty() ? text : text + "  // " + place;
}

std::vector<std::string> Recipe::lines() const {
  std::vector<std::string> lines;
  for (const Call& call : calls) {
    std::string given;
    for (uint32_t i = 0; i < call.num_operands; ++i) {
      const Operand& operand = operands[call.first_operand + i];
      given += (i == 0 ? "%" : ", %") + std::to_string(operand.index);
      if (operand.result != 0) given += "." + std::to_string(operand.result);
    }
    lines.push_back("%" + std::to_string(num_parameters + lines.size()) + " = " +
                    text_of(call, given));
  }
  return lines;
}

}  // namespace torch_xla::executor
