#include "ops/dtypes.h"

#include <atomic>
#include <stdexcept>
#include <string>

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

hlo::DType to_hlo(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBool:
      return hlo::DType::Pred;
    case at::kByte:
      return hlo::DType::U8;
    case at::kChar:
      return hlo::DType::S8;
    case at::kShort:
      return hlo::DType::S16;
    case at::kInt:
      return hlo::DType::S32;
    case at::kLong:
      return hlo::DType::S64;
    case at::kUInt16:
      return hlo::DType::U16;
    case at::kUInt32:
      return hlo::DType::U32;
    case at::kUInt64:
      return hlo::DType::U64;
    case at::kBFloat16:
      return hlo::DType::BF16;
    case at::kHalf:
      return hlo::DType::F16;
    case at::kFloat:
      return hlo::DType::F32;
    case at::kDouble:
      return hlo::DType::F64;
    case at::kComplexFloat:
      return hlo::DType::C64;
    case at::kComplexDouble:
      return hlo::DType::C128;
    case at::kFloat8_e4m3fn:
      return hlo::DType::F8E4M3FN;
    case at::kFloat8_e4m3fnuz:
      return hlo::DType::F8E4M3FNUZ;
    case at::kFloat8_e5m2:
      return hlo::DType::F8E5M2;
    case at::kFloat8_e5m2fnuz:
      return hlo::DType::F8E5M2FNUZ;
    default:
      throw std::invalid_argument(std::string("xla: expected a dtype that XLA has, got ") +
                                  c10::toString(dtype) + ". Convert the tensor to another dtype.");
  }
}

}  // namespace torch_xla::ops
