// The dtype conversion that the recorder makes for in-place writes and copies.
#include "ops/lowering.h"

namespace torch_xla::ops {
namespace {

hlo::Values to_copy(Lowering& l) {
  const hlo::DType to = l.out().dtype;
  const hlo::Value x = l.in(0);
  if (to == hlo::DType::Pred && x.dtype() != hlo::DType::Pred) {
    return {hlo::compare(hlo::Direction::NE, x, hlo::zero(l.b, x.type()))};
  }
  return {hlo::convert(x, to)};
}

}  // namespace

void register_cast(Registry& r) { r.add("aten::_to_copy", to_copy); }

}  // namespace torch_xla::ops
