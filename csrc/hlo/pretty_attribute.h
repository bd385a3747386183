// Attributes and numbers as MLIR's printer writes them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "hlo/generic.h"

namespace torch_xla::hlo {

// Any attribute: members of dictionaries sorted, literals in their shortest exact form.
std::string pretty_attribute(std::string_view text);
// Returns the text inside dense<..> of this type, such as tensor<2x3xf32>.
std::string pretty_literal(std::string_view literal, std::string_view type);
// The element type of tensor<2x3xf32>.
std::string_view element_of(std::string_view type);
// `name = value, ..`, sorted, without braces.
std::string pretty_entries(std::span<const NamedText> entries);
// With its @, in quotes if need be.
std::string pretty_symbol(std::string_view symbol);

}  // namespace torch_xla::hlo
