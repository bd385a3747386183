// torch_xla::sharding_constraint(self, sharding) -> self, which says how a value is split among the
// devices (spmd/sharding.h). The sharding is given by its text.
#pragma once

#include <vector>

#include "lazy/function.h"
#include "spmd/sharding.h"

namespace torch_xla::ops {

// Returns the sharding that a call gives its value; null for all other calls.
const spmd::Sharding* sharding_given_by(const lazy::Signature& signature);
// Adds those that the calls of a function give to values, and the calls of their expansions.
void add_shardings_given_by(const lazy::Function& function,
                            std::vector<const spmd::Sharding*>& found);

}  // namespace torch_xla::ops
