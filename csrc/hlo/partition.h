// Splits values in a program that is partitioned, and keeps XLA's partitioner from what
// it gets wrong. Elsewhere these functions return values as they are.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "hlo/builder.h"
#include "spmd/sharding.h"

namespace torch_xla::hlo {

// Says how an argument or a result of the program is split.
Attribute sharding_attribute(const Builder& b, const spmd::Sharding& sharding);
// Says how a value is split.
Value constrained(const Value& x, const spmd::Sharding& sharding);
// Has each device hold all of these dimensions of a value.
Value unsplit(const Value& x, const Dims& along);
// Returns the dimensions that devices cannot hold equal parts of, along whichever axes.
Dims uneven_dims(const Value& x);
// Returns the dimensions whose sizes an operation changes (a slice, a concatenation) and that would
// be split in unequal parts before or after it. Its operands and its result are to be whole along
// these: a split of the result alone is one that the partitioner would compute it in.
Dims unevenly_changed(std::span<const Value> operands, const Type& result);

// A value together with how it is split, and what one device has of it.
struct Split {
  const spmd::Sharding* sharding;
  Type whole, part;
};

// Returns values whose parts each device computes by itself, without communication of the
// partitioner's, from its parts of `operands`. `body` gets these, and gives parts of the results,
// which `joined` says the wholes of. Axes are split as they are, not in parts. Within `body` there
// is no mesh.
Values on_each_device(Builder& b, std::span<const Value> operands, std::span<const Split> splits,
                      const std::function<Values(std::span<const Value>)>& body,
                      const std::function<Split(const Type& part)>& joined);

}  // namespace torch_xla::hlo
