// Collectives: the members of a group exchange what each has. They are partitions of one program,
// in a body of on_each_device() (hlo/partition.h), or replicas, which all run the program, each on
// data of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "hlo/builder.h"

namespace torch_xla::hlo {

struct Groups {
  enum class Of : uint8_t { Partitions, Replicas };

  Of of = Of::Partitions;
  std::vector<std::vector<int64_t>> members;  // each once; groups are of one size

  int64_t size() const { return std::ssize(members[0]); }
};

// Reduces two scalars to one.
using Reduction = std::function<Value(const Value&, const Value&)>;
// Returns that of a StableHLO operation, "stablehlo.add" without its prefix.
Reduction reduction_by(std::string_view operation);

// All of it on each member.
Value all_reduce(const Value& x, const Reduction& reduction, const Groups& groups);
// The same of values of one dtype: of replicas in one exchange. XLA reads Shardy's programs with
// operations of one result alone.
Values all_reduce(std::span<const Value> xs, const Reduction& reduction, const Groups& groups);
// A part of it, along a dimension, on each.
Value reduce_scatter(const Value& x, const Reduction& reduction, int64_t dim, const Groups& groups);
// All of their values, one after the other along a dimension, on each member.
Value all_gather(const Value& x, int64_t dim, const Groups& groups);
// Each member cuts its value into a part for each along one dimension, and joins those that it gets
// along another.
Value all_to_all(const Value& x, int64_t split_dim, int64_t join_dim, const Groups& groups);
// The value of another member: groups are pairs of who sends and who gets. Who gets none has zeros.
Value collective_permute(const Value& x, const Groups& pairs);
// The value of the first member of the group. Who is in none has zeros.
Value collective_broadcast(const Value& x, const Groups& groups);
// The same, of groups of all, for compilers that lack the operation.
Value broadcast_by_gather(const Value& x, const Groups& groups);
// As all_reduce and reduce_scatter, for reductions that compilers do not exchange by.
Value reduce_by_gather(const Value& x, const Reduction& reduction, const Groups& groups);
Value reduce_scatter_by_parts(const Value& x, const Reduction& reduction, int64_t dim,
                              const Groups& groups);

}  // namespace torch_xla::hlo
