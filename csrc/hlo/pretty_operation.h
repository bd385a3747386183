// The forms of the operations that MLIR's printer writes on one line; one table has them all.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "hlo/generic.h"

namespace torch_xla::hlo {

// Returns the name of a value where its number would not say enough: "cst", "values"; empty
// elsewhere.
std::string_view name_of_result(const Operation& o, size_t result);

// The form of operations that have one: their words behind the name. Empty: the generic form.
std::string_view form_of(const Operation& o);
// An operation in its form, whose operands have these names.
std::string in_form(const Operation& o, std::string_view form,
                    std::span<const std::string> operands);

// The parts of the generic form around the regions: ` <{..}>`, and ` {..} : (..) -> ..`.
std::string inherent_attributes(const Operation& o);
std::string other_attributes(const Operation& o);

std::string joined(std::span<const std::string_view> texts);
std::string joined(std::span<const std::string> texts);
std::string function_type(const Operation& o);    // (a, b) -> c
std::string list_of(std::string_view attribute);  // array<i64: 1, 2> as [1, 2]

}  // namespace torch_xla::hlo
