// Operators that keep values as they are: the dtype conversion that the recorder makes for in-place
// writes and copies, and the barrier between parts of a program.
#include "ops/common.h"

namespace torch_xla::ops {
namespace {

hlo::Values to_copy(Lowering& l) { return {cast(l.in(0), l.out().dtype)}; }

// torch_xla::optimization_barrier(tensors) -> tensors: nothing after it is computed before it.
hlo::Values optimization_barrier(Lowering& l) {
  const hlo::Values values = l.list(0);
  std::vector<hlo::Type> types;
  for (const hlo::Value& v : values) types.push_back(v.type());
  return l.b.op("stablehlo.optimization_barrier", values, types);
}

}  // namespace

void register_cast(Registry& r) {
  r.add("aten::_to_copy", to_copy);
  r.add("torch_xla::optimization_barrier", optimization_barrier);
}

}  // namespace torch_xla::ops
