// Recipe, the calls that a program was made from, and how two of them differ.
#pragma once

#include <cstdint>
#include <optional>
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

// Where one recipe first differs from another, in words for users.
struct Difference {
  enum class Kind {
    Shape,      // sizes of a tensor
    DType,      // of a tensor, or PyTorch's default one
    Attribute,  // an argument that is a part of the program
    Calls,      // a call that the other has not, or another one in its place
    Inputs,     // a value that is data in one and computed in the other
    Results,    // what is kept of the values
  };
  Kind kind;
  std::string what;  // "`input` of aten::linear is Float[7,4], was Float[8,4]"
  // The calls that differ; one of them alone where it came in or went away.
  std::optional<Recipe::Call> call = {}, earlier_call = {};
  std::string argument = {};                                      // of an attribute
  const lazy::Geometry *type = nullptr, *earlier_type = nullptr;  // of a shape or dtype

  // "... at train.py:3 (step)"
  std::string str() const;
};
// Nothing where all calls and operands are equal.
std::optional<Difference> difference(const Recipe& recipe, const Recipe& earlier);
// That as a sentence without its full stop, for errors.
std::string first_difference(const Recipe& recipe, const Recipe& earlier);
const char* name_of(Difference::Kind kind);

// The share of equal operators in two recipes, from 0 to 1, and of equal calls among them.
struct Likeness {
  double operators = 0, calls = 0;
  friend auto operator<=>(const Likeness&, const Likeness&) = default;
};
Likeness likeness(const Recipe& a, const Recipe& b);

}  // namespace torch_xla::executor
