#include "hlo/collectives.h"

#include <string>
#include <utility>

#include "hlo/ops.h"
#include "util/error.h"

namespace torch_xla::hlo {
namespace {

Dims joined(const Groups& groups) {
  Dims members;
  for (const auto& group : groups.members) {
    members.insert(members.end(), group.begin(), group.end());
  }
  return members;
}

// Partitions exchange over a channel; without one, members are replicas.
void add_channel(const Value& x, const Groups& groups, Attributes& attributes) {
  if (groups.of == Groups::Of::Replicas) return;
  attributes.push_back({"channel_handle", "#stablehlo.channel_handle<handle = " +
                                              std::to_string(x.id() + 1) + ", type = 1>"});
}

void add_groups(const Value& x, const Groups& groups, Attributes& attributes) {
  attributes.push_back({"replica_groups", attr::matrix(joined(groups), groups.size())});
  add_channel(x, groups, attributes);
}

// Serves operations whose members a channel alone would leave replicas, in all partitions.
void add_global_groups(const Value& x, const Groups& groups, Attributes& attributes) {
  add_groups(x, groups, attributes);
  if (groups.of == Groups::Of::Partitions) attributes.push_back({"use_global_device_ids", "unit"});
}

Region region_of(Builder& b, const Reduction& reduction, DType dtype) {
  const Type numbers[] = {{dtype, {}}, {dtype, {}}};
  return b.region(numbers,
                  [&](std::span<const Value> args) { return Values{reduction(args[0], args[1])}; });
}

// Divides a size among the members.
void divide(int64_t& size, const Groups& groups, const char* who) {
  TXLA_CHECK_KIND(util::ErrorKind::Value, size % groups.size() == 0, who,
                  ": expected a dimension that the ", groups.size(),
                  " members of a group divide, got ", size, ".");
  size /= groups.size();
}

}  // namespace

Reduction reduction_by(std::string_view operation) {
  return [operation = std::string(operation)](const Value& a, const Value& b) {
    return binary(operation, a, b);
  };
}

Values all_reduce(std::span<const Value> xs, const Reduction& reduction, const Groups& groups) {
  if (xs.size() > 1 && groups.of == Groups::Of::Partitions) {
    Values all;
    for (const Value& x : xs) all.push_back(all_reduce(x, reduction, groups));
    return all;
  }
  Builder& b = xs[0].builder();
  std::vector<Type> types;
  for (const Value& x : xs) {
    TXLA_CHECK(x.dtype() == xs[0].dtype(), "all_reduce: expected values of one dtype, got ",
               xs[0].type().str(), " and ", x.type().str(), ".");
    types.push_back(x.type());
  }
  const Region region = region_of(b, reduction, xs[0].dtype());
  Attributes attributes;
  add_global_groups(xs[0], groups, attributes);
  return b.op("stablehlo.all_reduce", xs, types, attributes, std::span(&region, 1));
}

Value all_reduce(const Value& x, const Reduction& reduction, const Groups& groups) {
  return all_reduce(std::span(&x, 1), reduction, groups)[0];
}

Value reduce_scatter(const Value& x, const Reduction& reduction, int64_t dim,
                     const Groups& groups) {
  Builder& b = x.builder();
  Type part = x.type();
  divide(part.dims[dim], groups, "reduce_scatter");
  const Region region = region_of(b, reduction, x.dtype());
  Attributes attributes = {{"scatter_dimension", attr::i64(dim)}};
  add_global_groups(x, groups, attributes);
  return b.op("stablehlo.reduce_scatter", {x}, part, attributes, std::span(&region, 1));
}

Value all_gather(const Value& x, int64_t dim, const Groups& groups) {
  Type all = x.type();
  all.dims[dim] *= groups.size();
  Attributes attributes = {{"all_gather_dim", attr::i64(dim)}};
  add_global_groups(x, groups, attributes);
  return x.builder().op("stablehlo.all_gather", {x}, all, attributes);
}

Value all_to_all(const Value& x, int64_t split_dim, int64_t join_dim, const Groups& groups) {
  Type result = x.type();
  divide(result.dims[split_dim], groups, "all_to_all");
  result.dims[join_dim] *= groups.size();
  Attributes attributes = {{"split_dimension", attr::i64(split_dim)},
                           {"concat_dimension", attr::i64(join_dim)},
                           {"split_count", attr::i64(groups.size())}};
  add_groups(x, groups, attributes);
  return x.builder().op("stablehlo.all_to_all", {x}, result, attributes);
}

Value collective_permute(const Value& x, const Groups& pairs) {
  Attributes attributes = {{"source_target_pairs", attr::matrix(joined(pairs), 2)}};
  add_channel(x, pairs, attributes);
  return x.builder().op("stablehlo.collective_permute", {x}, x.type(), attributes);
}

Value collective_broadcast(const Value& x, const Groups& groups) {
  Attributes attributes;
  add_groups(x, groups, attributes);
  return x.builder().op("stablehlo.collective_broadcast", {x}, x.type(), attributes);
}

namespace {

Value as_row(const Value& x) {
  Dims row = x.dims();
  row.insert(row.begin(), 1);
  return reshape(x, row);
}

Value row_of(const Value& rows, int64_t i) {
  const Value row = slice_dim(rows, 0, i, i + 1);
  return reshape(row, Dims(row.dims().begin() + 1, row.dims().end()));
}

Value fold(const Value& rows, const Reduction& reduction) {
  Value total = row_of(rows, 0);
  for (int64_t i = 1; i < rows.dims()[0]; ++i) total = reduction(total, row_of(rows, i));
  return total;
}

}  // namespace

Value broadcast_by_gather(const Value& x, const Groups& groups) {
  return row_of(all_gather(as_row(x), 0, groups), 0);
}

Value reduce_by_gather(const Value& x, const Reduction& reduction, const Groups& groups) {
  return fold(all_gather(as_row(x), 0, groups), reduction);
}

Value reduce_scatter_by_parts(const Value& x, const Reduction& reduction, int64_t dim,
                              const Groups& groups) {
  return fold(all_to_all(as_row(x), dim + 1, 0, groups), reduction);
}

}  // namespace torch_xla::hlo
