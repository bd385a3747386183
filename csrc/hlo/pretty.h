// Prints programs for people, as MLIR's own printer does: `%0 = stablehlo.add %arg0, %cst : ..`.
// What is compiled, cached and compared stays in the generic form.
#pragma once

#include <string>
#include <string_view>

namespace torch_xla::hlo {

// `program` is a module in the generic form, as Builder writes it. Where `folds_numbers`, those are
// constants of the types in which they are used (hlo/fold_numbers.h).
std::string pretty(std::string_view program, bool folds_numbers = false);

}  // namespace torch_xla::hlo
