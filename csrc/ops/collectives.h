// Collectives as calls, by which the members of a group exchange what each has. Where `replicas` is
// false they are the devices that each have a manual value (ops/manual_sharding.h), by their
// positions in the mesh; else they are the replicas of the job, by their numbers, and the call is
// recorded as an exchange (ops/exchange.h).
// `members` are those of all groups, one group of `size` after the other; all are one group where
// it is empty.
//   torch_xla::all_reduce(self, reduction, scale, members, size, replicas)
//   torch_xla::reduce_scatter(self, reduction, scale, dim, members, size, replicas)
//   torch_xla::all_gather(self, dim, members, size, replicas)
//   torch_xla::all_to_all(self, split_dim, join_dim, members, size, replicas)
//   torch_xla::collective_broadcast(self, members, size, replicas)
//   torch_xla::collective_permute(self, members, replicas): pairs of who sends and who gets
#pragma once

#include <cstdint>

#include "lazy/operator.h"
#include "ops/registry.h"

namespace torch_xla::ops {

// Returns whether an operator is one of these.
bool is_collective(const lazy::Operator& op);

namespace rules {
extern const RuleFunction all_reduce, reduce_scatter, all_gather, all_to_all, collective_broadcast,
    collective_permute;
}  // namespace rules

}  // namespace torch_xla::ops
