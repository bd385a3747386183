#include "hlo/collectives.h"

#include <array>
#include <iterator>
#include <string>

#include "hlo/ops.h"

namespace torch_xla::hlo {
namespace {

// Each device of a group sends its part to the others.
Value exchanged(const Value& x, std::string_view op, const Groups& groups, const Type& result,
                Attributes attributes, std::span<const Region> regions = {}) {
  Dims members;
  for (const auto& group : groups) members.insert(members.end(), group.begin(), group.end());
  attributes.push_back({"replica_groups", attr::matrix(members, std::ssize(groups[0]))});
  attributes.push_back({"channel_handle", "#stablehlo.channel_handle<handle = " +
                                              std::to_string(x.id() + 1) + ", type = 1>"});
  attributes.push_back({"use_global_device_ids", "unit"});
  return x.builder().op(op, {x}, result, attributes, regions);
}

Value reduced(const Value& x, std::string_view op, std::string_view reduction, const Groups& groups,
              const Type& result, Attributes attributes) {
  const std::array<Type, 2> numbers = {Type{x.dtype(), {}}, Type{x.dtype(), {}}};
  const Region reduce = x.builder().region(numbers, [&](std::span<const Value> args) {
    return Values{binary(reduction, args[0], args[1])};
  });
  return exchanged(x, op, groups, result, std::move(attributes), std::span(&reduce, 1));
}

}  // namespace

Value all_reduce(const Value& x, std::string_view reduction, const Groups& groups) {
  return reduced(x, "stablehlo.all_reduce", reduction, groups, x.type(), {});
}

Value reduce_scatter(const Value& x, std::string_view reduction, int64_t dim,
                     const Groups& groups) {
  Type part = x.type();
  part.dims[dim] /= std::ssize(groups[0]);
  return reduced(x, "stablehlo.reduce_scatter", reduction, groups, part,
                 {{"scatter_dimension", attr::i64(dim)}});
}

Value all_gather(const Value& x, int64_t dim, const Groups& groups) {
  Type joined = x.type();
  joined.dims[dim] *= std::ssize(groups[0]);
  return exchanged(x, "stablehlo.all_gather", groups, joined, {{"all_gather_dim", attr::i64(dim)}});
}

}  // namespace torch_xla::hlo
