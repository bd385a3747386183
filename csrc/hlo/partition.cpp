#include "hlo/partition.h"

#include <algorithm>
#include <string>

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
  if (b.lacks().shardy) return {"mhlo.sharding", attr::string(sharding.tiles().text())};
  return {"sdy.sharding", in_mesh(sharding.shardy())};
}

Value constrained(const Value& x, const spmd::Sharding& sharding) {
  Builder& b = x.builder();
  if (b.mesh() == nullptr) return x;
  if (b.lacks().shardy) return called(x, "Sharding", sharding.tiles().text(), x.type());
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

Dims unevenly_changed(std::span<const Value> operands, const Type& result) {
  Dims changed;  // of any operand
  const spmd::Mesh* mesh = operands[0].builder().mesh();
  if (mesh == nullptr) return changed;
  const auto n = std::ssize(mesh->devices);
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
    wholes.push_back(
        called(made, "SPMDShardToFullShape", whole.sharding->tiles().text(), whole.whole));
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

}  // namespace torch_xla::hlo
