#include "ops/sharding_constraint.h"

#include <array>

#include "hlo/partition.h"
#include "lazy/operator.h"
#include "ops/manual_sharding.h"
#include "ops/rules.h"
#include "util/error.h"

namespace torch_xla::ops {
namespace {

hlo::Values sharding_constraint(Lowering& l) {
  const hlo::Value x = l.in(0);
  const spmd::Mesh* mesh = l.b.mesh();
  if (mesh == nullptr) return {x};  // a program for one device
  const spmd::Sharding* sharding = sharding_named_by(l.signature()).in_mesh(mesh);
  TXLA_CHECK_KIND(util::ErrorKind::Value, !sharding->is_manual,
                  "sharding: expected one that splits a value, got {manual}. Use "
                  "enable_manual_sharding.");
  return {hlo::constrained(x, *sharding->evened(x.dims()))};
}

bool names_sharding(const lazy::Signature& s) {
  return (s.op->rule != nullptr && s.op->rule->lower == sharding_constraint) ||
         boundary_of(s) != Boundary::None;
}

}  // namespace

const spmd::Sharding* sharding_given_by(const lazy::Signature& signature) {
  if (boundary_of(signature) == Boundary::Enters) {
    return spmd::Sharding::manual(sharding_named_by(signature).mesh,
                                  signature.outputs[0]->sizes.size());
  }
  return names_sharding(signature) ? &sharding_named_by(signature) : nullptr;
}

void NamedShardings::add(const lazy::Function& function) {
  for (const lazy::Function::Call& call : function.calls) add(*call.signature);
}

void NamedShardings::add(const lazy::Signature& call) {
  if (names_sharding(call)) {
    all.push_back(&sharding_named_by(call));
    if (boundary_of(call) != Boundary::None) of_boundaries.push_back(all.back());
  }
  if (call.expansion != nullptr) add(*call.expansion);
  for (const auto& region : call.regions) add(*region);
}

const spmd::Mesh* NamedShardings::common_mesh() const {
  if (const spmd::Mesh* mesh = spmd::common_mesh(all, of_boundaries)) return mesh;
  const spmd::Sharding* other = all.back();
  for (const spmd::Sharding* s : all) {
    if (spmd::common_mesh(std::array{all.front(), s}) == nullptr) other = s;
  }
  util::fail(util::ErrorKind::Runtime,
             "sharding: expected meshes over the same devices in the same order in one step, got ",
             all.front()->text, " and ", other->text,
             ". Use one mesh: call clear_sharding() on the tensors of one of them, and mark them "
             "along the other.");
}

namespace rules {
const RuleFunction sharding_constraint = ops::sharding_constraint;
}

}  // namespace torch_xla::ops
