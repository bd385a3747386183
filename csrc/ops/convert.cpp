#include "ops/convert.h"

#include <limits>

#include <c10/util/Float8_e4m3fn.h>

#include "ops/notation.h"

namespace torch_xla::ops {

using hlo::DType;
using hlo::Value;

DType compute_dtype(DType dtype) {
  return hlo::is_float(dtype) && hlo::bit_width(dtype) < 32 ? DType::F32 : dtype;
}

namespace {

// The integer towards zero. What has none in `dtype`, nan among it, becomes the least: so do the
// processors that PyTorch runs on, whereas StableHLO leaves it to the compiler.
Value truncated(const Value& x, DType dtype) {
  const Value inside = hlo::less(hlo::abs(x), dtype == DType::S64 ? 0x1p63 : 0x1p31);
  return hlo::select(inside, hlo::convert(x, dtype),
                     hlo::lowest(x.builder(), x.type().with(dtype)));
}

// As c10::convert of the CPU: by way of an integer that is wider or has a sign, then its low bits.
Value float_to_integer(const Value& of, DType dtype) {
  const Value x = hlo::convert(of, compute_dtype(of.dtype()));
  if (dtype == DType::U64) {
    const double half = 0x1p63;
    const Value small = hlo::convert(truncated(x, DType::S64), DType::U64);
    const Value large = hlo::convert(truncated(x - half, DType::S64), DType::U64);
    const Value top =
        hlo::splat_int(x.builder(), std::numeric_limits<int64_t>::min(), large.type());
    return hlo::select(hlo::greater_equal(x, half), hlo::logical_xor(large, top), small);
  }
  const bool wide = dtype == DType::S64 || dtype == DType::U32 || dtype == DType::U8;
  return hlo::convert(truncated(x, wide ? DType::S64 : DType::S32), dtype);
}

// float8_e4m3fn has no infinity: since PyTorch 2.13 the largest number stands for what is larger,
// before that nan did.
Value float8_e4m3fn(const Value& of) {
  static const bool saturates = c10::Float8_e4m3fn(500.0F).x == c10::Float8_e4m3fn(448.0F).x;
  const Value x = hlo::convert(of, DType::F32);
  const Value inside = hlo::min(hlo::max(x, hlo::like(x, -448)), hlo::like(x, 448));
  return hlo::convert(saturates ? hlo::select(hlo::is_nan(x), x, inside) : x, DType::F8E4M3FN);
}

}  // namespace

Value cast(const Value& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  if (dtype == DType::Pred) return hlo::not_equal(x, hlo::zero(x.builder(), x.type()));
  if (hlo::is_complex(x.dtype()) && hlo::is_integer(dtype)) return cast(hlo::real(x), dtype);
  if (hlo::is_float(x.dtype()) && hlo::is_integer(dtype)) return float_to_integer(x, dtype);
  if (dtype == DType::F8E4M3FN) return float8_e4m3fn(x);
  return hlo::convert(x, dtype);
}

}  // namespace torch_xla::ops
