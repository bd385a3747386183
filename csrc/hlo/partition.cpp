#include "hlo/partition.h"

#include <algorithm>
#include <array>
#include <string>

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

}  // namespace torch_xla::hlo
