// How values are split in a program that is partitioned, and what keeps XLA's partitioner from what
// it gets wrong. Elsewhere these functions return values as they are.
#pragma once

#include <span>
#include <string_view>

#include "hlo/builder.h"

namespace torch_xla::hlo {

// Says how a value is split; `sharding` in Shardy's words, [{"data"}, {?}].
Value constrained(const Value& x, std::string_view sharding);
// Has each device hold all of these dimensions of a value.
Value unsplit(const Value& x, const Dims& along);
// Returns the dimensions that devices cannot hold equal parts of, along whichever axes.
Dims uneven_dims(const Value& x);
// Returns the dimensions whose sizes an operation changes (a slice, a concatenation) and that would
// be split in unequal parts before or after it. Its operands and its result are to be whole along
// these: a split of the result alone is one that the partitioner would compute it in.
Dims unevenly_changed(std::string_view op, std::span<const Value> operands, const Type& result);

}  // namespace torch_xla::hlo
