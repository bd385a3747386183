// Reads programs in MLIR's generic form, which Builder writes: every operation as
// `%r = "name"(operands) ({regions}) {attributes} : (types) -> types`. All parts are views of the
// text.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace torch_xla::hlo {

struct NamedText {
  std::string_view name, text;
};

struct Operation;

struct Block {
  std::vector<NamedText> arguments;  // and their types
  std::vector<Operation> operations;
};

struct Operation {
  std::vector<std::string_view> results;
  std::string_view name;
  std::vector<std::string_view> operands;
  std::vector<Block> regions;
  std::vector<NamedText> attributes;
  std::vector<std::string_view> operand_types, result_types;
  std::string_view location;  // loc(..), or empty

  std::string_view attribute(std::string_view of) const;  // empty where there is none
};

struct FunctionText {
  std::string_view symbol;  // with its @
  bool is_private = false;
  Block body;  // its arguments are the function's
  std::vector<std::string_view> argument_attributes;
  std::vector<NamedText> results;  // types, and the text of attributes
};

// Reads `text` from its start, and leaves what follows. Each throws where the text is not of this
// form.
FunctionText read_function(std::string_view& text);

// The members of a list without its brackets, split at commas that stand in no bracket or string.
std::vector<std::string_view> members_of(std::string_view list);
// A dictionary without its braces; a member without `=` has no text.
std::vector<NamedText> entries_of(std::string_view dictionary);
// Where the bracket or string ends that opens at `from`: behind its last character.
size_t end_of_bracket(std::string_view text, size_t from);

}  // namespace torch_xla::hlo
