#include "hlo/types.h"

#include <array>

namespace torch_xla::hlo {
namespace {

enum class Class : uint8_t { Pred, Signed, Unsigned, Float, Complex };

struct Info {
  std::string_view name;
  Class kind;
  uint8_t bits;
};

// In the order of DType.
constexpr std::array<Info, 21> kInfo = {{
    {"i1", Class::Pred, 1},
    {"i4", Class::Signed, 4},
    {"i8", Class::Signed, 8},
    {"i16", Class::Signed, 16},
    {"i32", Class::Signed, 32},
    {"i64", Class::Signed, 64},
    {"ui4", Class::Unsigned, 4},
    {"ui8", Class::Unsigned, 8},
    {"ui16", Class::Unsigned, 16},
    {"ui32", Class::Unsigned, 32},
    {"ui64", Class::Unsigned, 64},
    {"f8E4M3FN", Class::Float, 8},
    {"f8E4M3FNUZ", Class::Float, 8},
    {"f8E5M2", Class::Float, 8},
    {"f8E5M2FNUZ", Class::Float, 8},
    {"bf16", Class::Float, 16},
    {"f16", Class::Float, 16},
    {"f32", Class::Float, 32},
    {"f64", Class::Float, 64},
    {"complex<f32>", Class::Complex, 64},
    {"complex<f64>", Class::Complex, 128},
}};

const Info& info(DType dtype) { return kInfo[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view name(DType dtype) { return info(dtype).name; }
size_t byte_size(DType dtype) { return (info(dtype).bits + 7) / 8; }
size_t bit_width(DType dtype) { return info(dtype).bits; }
bool is_float(DType dtype) { return info(dtype).kind == Class::Float; }
bool is_complex(DType dtype) { return info(dtype).kind == Class::Complex; }
bool is_integer(DType dtype) {
  return info(dtype).kind == Class::Signed || info(dtype).kind == Class::Unsigned;
}
bool is_unsigned(DType dtype) { return info(dtype).kind == Class::Unsigned; }

DType real_part(DType dtype) {
  if (dtype == DType::C64) return DType::F32;
  if (dtype == DType::C128) return DType::F64;
  return dtype;
}

DType complex_of(DType dtype) {
  if (dtype == DType::F32) return DType::C64;
  if (dtype == DType::F64) return DType::C128;
  return dtype;
}

std::string Type::str() const {
  std::string text = "tensor<";
  for (int64_t d : dims) {
    text += std::to_string(d);
    text += 'x';
  }
  text += name(dtype);
  text += '>';
  return text;
}

}  // namespace torch_xla::hlo
