#include "hlo/partition.h"

#include <algorithm>
#include <array>
#include <string>

#include "hlo/ops.h"

namespace torch_xla::hlo {

namespace {

std::string in_mesh(std::string_view dims) {
  return "#sdy.sharding<@mesh, " + std::string(dims) + ">";
}

// GSPMD's operators are calls of functions that it knows.
Value called(const Value& x, std::string_view function, std::string_view sharding,
             const Type& result, std::string_view config = "") {
  return x.builder().op("stablehlo.custom_call", {x}, result,
                        {{"call_target_name", attr::string(function)},
                         {"backend_config", attr::string(config)},
                         {"mhlo.sharding", attr::string(sharding)}});
}

}  // namespace

Attribute sharding_attribute(const Builder& b, const spmd::Sharding& sharding) {
  if (b.lacks().shardy) return {"mhlo.sharding", attr::string(sharding.tiles())};
  return {"sdy.sharding", in_mesh(sharding.shardy())};
}

Value constrained(const Value& x, const spmd::Sharding& sharding) {
  Builder& b = x.builder();
  if (b.mesh() == nullptr) return x;
  if (b.lacks().shardy) return called(x, "Sharding", sharding.tiles(), x.type());
  return b.op("sdy.sharding_constraint", {x}, x.type(), {{"sharding", in_mesh(sharding.shardy())}});
}

Value unsplit(const Value& x, const Dims& along) {
  Builder& b = x.builder();
  if (b.mesh() == nullptr || along.empty()) return x;
  std::string dims, open;
  for (int64_t i = 0; i < x.rank(); ++i) {
    const bool whole = std::ranges::find(along, i) != along.end();
    dims += (dims.empty() ? "" : ", ") + std::string(whole ? "{}" : "{?}");
    if (!whole) open += (open.empty() ? "" : ",") + std::to_string(i);
  }
  if (b.lacks().shardy) {
    const std::string config = open.empty() ? "" : "unspecified_dims=[" + open + "]";
    return called(x, "Sharding", "{replicated}", x.type(), config);
  }
  return b.op("sdy.sharding_constraint", {x}, x.type(), {{"sharding", in_mesh("[" + dims + "]")}});
}

Dims uneven_dims(const Value& x) {
  Dims dims;
  const spmd::Mesh* mesh = x.builder().mesh();
  for (int64_t i = 0; mesh != nullptr && i < x.rank(); ++i) {
    if (x.dim(i) % std::ssize(mesh->devices) != 0) dims.push_back(i);
  }
  return dims;
}

Dims unevenly_changed(std::string_view op, std::span<const Value> operands, const Type& result) {
  static constexpr std::array<std::string_view, 5> kChangeSizes = {
      "stablehlo.slice", "stablehlo.pad", "stablehlo.concatenate", "stablehlo.dynamic_slice",
      "stablehlo.dynamic_update_slice"};
  Dims changed;  // of any operand
  if (std::ranges::find(kChangeSizes, op) == kChangeSizes.end()) return changed;
  const auto n = std::ssize(operands[0].builder().mesh()->devices);
  const int64_t rank = std::ssize(result.dims);
  for (const Value& x : operands) {
    if (x.rank() != rank) continue;
    for (int64_t i = 0; i < rank; ++i) {
      const int64_t from = x.dim(i), to = result.dims[i];
      if (from != to && (from % n != 0 || to % n != 0)) changed.push_back(i);
    }
  }
  return changed;
}

namespace {

// While it lives the module's values are those of one device.
class OneDevice {
 public:
  explicit OneDevice(Builder& b) : b_(b), mesh_(b.mesh()) {
    b_.set_mesh(nullptr);
    b_.set_apart(mesh_);
  }
  ~OneDevice() {
    b_.set_mesh(mesh_);
    b_.set_apart(nullptr);
  }
  OneDevice(const OneDevice&) = delete;
  OneDevice& operator=(const OneDevice&) = delete;

 private:
  Builder& b_;
  const spmd::Mesh* mesh_;
};

std::string shardings_of(std::span<const Split> splits) {
  std::string text;
  for (const Split& s : splits)
    text += (text.empty() ? "<@mesh, " : ", <@mesh, ") + s.sharding->shardy() + ">";
  return "#sdy.sharding_per_value<[" + text + "]>";
}

std::string all_axes(const spmd::Mesh& mesh) {
  std::string text;
  for (const std::string& name : mesh.names) text += (text.empty() ? "\"" : ", \"") + name + "\"";
  return "#sdy<manual_axes{" + text + "}>";
}

using Body = std::function<Values(std::span<const Value>)>;
using Joined = std::function<Split(const Type& part)>;

// In GSPMD's words: what is between the two calls is each device's own.
Values between_boundaries(Builder& b, std::span<const Value> operands,
                          std::span<const Split> splits, const Body& body, const Joined& joined) {
  Values parts, wholes;
  for (size_t i = 0; i < operands.size(); ++i) {
    const Value split = constrained(operands[i], *splits[i].sharding);
    parts.push_back(called(split, "SPMDFullToShardShape", "{manual}", splits[i].part));
  }
  {
    const OneDevice within(b);
    parts = body(parts);
  }
  for (const Value& part : parts) {
    const Split whole = joined(part.type());
    const Value made = called(part, "Sharding", "{manual}", part.type());
    wholes.push_back(called(made, "SPMDShardToFullShape", whole.sharding->tiles(), whole.whole));
  }
  return wholes;
}

}  // namespace

Values on_each_device(Builder& b, std::span<const Value> operands, std::span<const Split> splits,
                      const Body& body, const Joined& joined) {
  if (b.lacks().shardy) return between_boundaries(b, operands, splits, body, joined);
  const spmd::Mesh& mesh = *b.mesh();
  std::vector<Type> parts, wholes;
  for (const Split& s : splits) parts.push_back(s.part);
  std::vector<Split> results;
  Region region;
  {
    const OneDevice within(b);
    region = b.region(
        parts,
        [&](std::span<const Value> given) {
          Values made = body(given);
          for (const Value& part : made) results.push_back(joined(part.type()));
          return made;
        },
        "sdy.return");
  }
  for (const Split& s : results) wholes.push_back(s.whole);
  return b.op("sdy.manual_computation", operands, wholes,
              {{"in_shardings", shardings_of(splits)},
               {"out_shardings", shardings_of(results)},
               {"manual_axes", all_axes(mesh)}},
              std::span<const Region>(&region, 1));
}

namespace {

// What devices of a group have goes to the others.
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
