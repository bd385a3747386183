// Element types and tensor types of StableHLO, and how they print.
// Everything here is a value type; nothing depends on torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace torch_xla::hlo {

enum class DType : uint8_t {
  Pred,
  S4,
  S8,
  S16,
  S32,
  S64,
  U4,
  U8,
  U16,
  U32,
  U64,
  F8E4M3FN,
  F8E4M3FNUZ,
  F8E5M2,
  F8E5M2FNUZ,
  BF16,
  F16,
  F32,
  F64,
  C64,
  C128,
};

std::string_view name(DType dtype);  // "f32", "i1", "ui8", "complex<f32>"
size_t byte_size(DType dtype);       // of one element in host memory
size_t bit_width(DType dtype);       // of one element (both halves of a complex)
bool is_float(DType dtype);
bool is_complex(DType dtype);
bool is_integer(DType dtype);  // signed and unsigned, not Pred
bool is_unsigned(DType dtype);
DType real_part(DType complex);  // C64 -> F32, C128 -> F64; others unchanged
DType complex_of(DType real);    // F32 -> C64, F64 -> C128

using Dims = std::vector<int64_t>;

struct Type {
  DType dtype = DType::F32;
  Dims dims;

  int64_t rank() const { return static_cast<int64_t>(dims.size()); }
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    return n;
  }
  Type with(DType other) const { return {other, dims}; }
  Type with(Dims other) const { return {dtype, std::move(other)}; }
  std::string str() const;  // "tensor<2x3xf32>"

  friend bool operator==(const Type&, const Type&) = default;
};

}  // namespace torch_xla::hlo
