#include "ops/sharding.h"

#include "hlo/partition.h"
#include "lazy/operator.h"
#include "ops/rules.h"

namespace torch_xla::ops {
namespace {

hlo::Values sharding_constraint(Lowering& l) {
  const hlo::Value x = l.in(0);
  const spmd::Mesh* mesh = l.b.mesh();
  if (mesh == nullptr) return {x};  // a program for one device
  const spmd::Sharding* sharding =
      sharding_given_by(l.signature())->in_mesh(mesh)->evened(x.dims());
  return {hlo::constrained(x, sharding->shardy())};
}

}  // namespace

const spmd::Sharding* sharding_given_by(const lazy::Signature& signature) {
  const Rule* rule = signature.op->rule;
  if (rule == nullptr || rule->lower != sharding_constraint) return nullptr;
  return spmd::Sharding::find(signature.arguments[1].value.toStringRef());
}

void add_shardings_given_by(const lazy::Function& function,
                            std::vector<const spmd::Sharding*>& found) {
  for (const lazy::Node* call : function.calls) {
    const lazy::Signature& s = call->signature();
    if (const spmd::Sharding* given = sharding_given_by(s)) found.push_back(given);
    if (s.expansion != nullptr) add_shardings_given_by(*s.expansion, found);
    for (const auto& region : s.regions) add_shardings_given_by(*region, found);
  }
}

namespace rules {
const RuleFunction sharding_constraint = ops::sharding_constraint;
}

}  // namespace torch_xla::ops
