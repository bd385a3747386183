#include "hlo/partition.h"

#include <algorithm>
#include <array>
#include <string>

#include "hlo/ops.h"
#include "spmd/sharding.h"

namespace torch_xla::hlo {

Value constrained(const Value& x, std::string_view sharding) {
  if (x.builder().mesh() == nullptr) return x;
  return x.builder().op("sdy.sharding_constraint", {x}, x.type(),
                        {{"sharding", attr::sharding(sharding)}});
}

Value unsplit(const Value& x, const Dims& along) {
  if (x.builder().mesh() == nullptr || along.empty()) return x;
  std::string dims;
  for (int64_t i = 0; i < x.rank(); ++i) {
    const bool whole = std::ranges::find(along, i) != along.end();
    dims += (dims.empty() ? "" : ", ") + std::string(whole ? "{}" : "{?}");
  }
  return constrained(x, "[" + dims + "]");
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
  explicit OneDevice(Builder& b) : b_(b), mesh_(b.mesh()) { b_.set_mesh(nullptr); }
  ~OneDevice() { b_.set_mesh(mesh_); }
  OneDevice(const OneDevice&) = delete;
  OneDevice& operator=(const OneDevice&) = delete;

 private:
  Builder& b_;
  const spmd::Mesh* mesh_;
};

std::string shardings_of(std::span<const Split> splits) {
  std::string text;
  for (const Split& s : splits)
    text += (text.empty() ? "<@mesh, " : ", <@mesh, ") + s.sharding + ">";
  return "#sdy.sharding_per_value<[" + text + "]>";
}

std::string all_axes(const spmd::Mesh& mesh) {
  std::string text;
  for (const std::string& name : mesh.names) text += (text.empty() ? "\"" : ", \"") + name + "\"";
  return "#sdy<manual_axes{" + text + "}>";
}

}  // namespace

Values on_each_device(Builder& b, std::span<const Value> operands, std::span<const Split> splits,
                      const std::function<Values(std::span<const Value>)>& body,
                      const std::function<Split(const Type& part)>& joined) {
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

Value sum_of_groups(const Value& x, const std::vector<std::vector<int64_t>>& groups) {
  Builder& b = x.builder();
  const std::array<Type, 2> numbers = {Type{x.dtype(), {}}, Type{x.dtype(), {}}};
  const Region add = b.region(
      numbers, [](std::span<const Value> args) { return Values{binary("add", args[0], args[1])}; });
  Dims members;
  for (const auto& group : groups) members.insert(members.end(), group.begin(), group.end());
  return b.op("stablehlo.all_reduce", {x}, x.type(),
              {{"replica_groups", attr::matrix(members, std::ssize(groups[0]))},
               {"channel_handle",
                "#stablehlo.channel_handle<handle = " + std::to_string(x.id() + 1) + ", type = 1>"},
               {"use_global_device_ids", "unit"}},
              std::span<const Region>(&add, 1));
}

}  // namespace torch_xla::hlo
