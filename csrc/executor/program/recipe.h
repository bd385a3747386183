// Recipe, the calls that a program was made from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lazy/function.h"
#include "lazy/source.h"

namespace torch_xla::executor {

// The calls as they were recorded, operands before users. Some 40 bytes a call.
struct Recipe {
  struct Operand {
    uint32_t index;   // among the parameters, then the calls
    uint32_t result;  // of a call that gives several
  };
  struct Call {
    c10::intrusive_ptr<const lazy::Signature> signature;
    lazy::Source source;
    uint32_t first_operand, num_operands;  // in `operands`
  };
  uint32_t num_parameters = 0;
  std::vector<Call> calls;
  std::vector<Operand> operands;
  std::vector<Operand> results;

  Recipe() = default;
  explicit Recipe(const lazy::Function& function);

  bool is_parameter(const Operand& operand) const { return operand.index < num_parameters; }
  // Prints a call without its operands: aten::sqrt() : Float[5,2]  // train.py:3
  static std::string text_of(const Call& call, const std::string& operands = "");
  // One line per call, as lazy/print.h prints them.
  std::vector<std::string> lines() const;
};

}  // namespace torch_xla::executor
