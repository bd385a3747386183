// The dtype conversion that the recorder makes for in-place writes and copies.
#include "ops/common.h"

namespace torch_xla::ops {
namespace {

hlo::Values to_copy(Lowering& l) { return {cast(l.in(0), l.out().dtype)}; }

}  // namespace

void register_cast(Registry& r) { r.add("aten::_to_copy", to_copy); }

}  // namespace torch_xla::ops
