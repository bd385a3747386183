// Difference, how the functions of two programs differ, in words for users.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lazy/function.h"

namespace torch_xla::executor {

// Where one function first differs from another, in words for users.
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
  std::optional<lazy::Function::Call> call = {}, earlier_call = {};
  std::string argument = {};                                      // of an attribute
  const lazy::Geometry *type = nullptr, *earlier_type = nullptr;  // of a shape or dtype

  // "... at train.py:3 (step)"
  std::string str() const;
};
// Nothing where all calls and operands are equal.
std::optional<Difference> difference(const lazy::Function& function, const lazy::Function& earlier);
// That as a sentence without its full stop, for errors.
std::string first_difference(const lazy::Function& function, const lazy::Function& earlier);
const char* name_of(Difference::Kind kind);

// The share of equal operators in two functions, from 0 to 1, and of equal calls among them.
struct Likeness {
  double operators = 0, calls = 0;
  friend auto operator<=>(const Likeness&, const Likeness&) = default;
};
Likeness likeness(const lazy::Function& a, const lazy::Function& b);

}  // namespace torch_xla::executor
