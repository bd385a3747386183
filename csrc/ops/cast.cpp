// Operators that keep values as they are: the dtype conversion that the recorder makes for in-place
// writes and copies, and the barrier between parts of a program.
#include "cpu/in_memory.h"
#include "ops/common.h"
#include "ops/rules.h"

namespace torch_xla::ops {
namespace {

hlo::Values to_copy(Lowering& l) { return {cast(l.in(0), l.out().dtype)}; }

// torch_xla::optimization_barrier(tensors) -> tensors: nothing after it is computed before it.
hlo::Values optimization_barrier(Lowering& l) {
  const hlo::Values values = l.list(0);
  std::vector<hlo::Type> types;
  for (const hlo::Value& v : values) types.push_back(v.type());
  const hlo::Values behind = l.b.op("stablehlo.optimization_barrier", values, types);
  // XLA's CPU compiler drops it, and calls stay where they are.
  return l.target().prefers_host_kernels() && !behind.empty() ? cpu::in_memory(behind) : behind;
}

// PyTorch's Meta kernels of these answer with floats. The host has the words for what comes.
void quantized_result(const Arguments&) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, "quantize: expected a dtype that a tensor of xla can have.");
}

}  // namespace

namespace rules {

const RuleFunction to_copy = ops::to_copy;
const RuleFunction optimization_barrier = ops::optimization_barrier;

}  // namespace rules

const Rules cast_rules([](Registry& r) {
  for (const char* name : {"aten::quantize_per_tensor", "aten::quantize_per_tensor_dynamic"}) {
    r.all(name).checks_call = quantized_result;
  }
});

}  // namespace torch_xla::ops
