// torch_xla::sharding_constraint(self, sharding) -> self, which says how a value is split among the
// devices (spmd/sharding.h). The sharding is given by its text.
#pragma once

#include <vector>

#include "lazy/function.h"
#include "spmd/sharding.h"

namespace torch_xla::ops {

// Returns the sharding that a call gives its value; null for all other calls.
const spmd::Sharding* sharding_given_by(const lazy::Signature& signature);
// The shardings that calls name, and the calls of their expansions.
struct NamedShardings {
  std::vector<const spmd::Sharding*> all;
  std::vector<const spmd::Sharding*> of_boundaries;  // of manual code (ops/manual_sharding.h)

  void add(const lazy::Function& function);
  void add(const lazy::Signature& call);
  // Returns a mesh that can say all of them. Throws where there is none, and names two.
  const spmd::Mesh* common_mesh() const;
};

}  // namespace torch_xla::ops
