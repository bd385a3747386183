#include "ops/dtypes.h"

#include <atomic>

#include "util/flags.h"

namespace torch_xla::ops {
namespace {

std::atomic<bool> narrows_some{false};

at::ScalarType narrowed(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return util::flag::XLA_USE_BF16() || util::flag::XLA_DOWNCAST_BF16() ? at::kBFloat16 : dtype;
    case at::kDouble:
      if (util::flag::XLA_USE_BF16()) return at::kBFloat16;
      return util::flag::XLA_DOWNCAST_BF16() ? at::kFloat : dtype;
    case at::kLong:
      return util::flag::XLA_USE_32BIT_LONG() ? at::kInt : dtype;
    default:
      return dtype;
  }
}

}  // namespace

at::ScalarType device_dtype(at::ScalarType dtype) {
  const at::ScalarType held = narrowed(dtype);
  if (held != dtype) narrows_some = true;
  return held;
}

bool has_narrowed() { return narrows_some; }

}  // namespace torch_xla::ops
