// Literals: the functions of hlo/ops.h that make constants.
#include <array>
#include <cstdio>
#include <limits>

#include "hlo/float_bits.h"
#include "hlo/ops.h"
#include "util/error.h"

namespace torch_xla::hlo {
namespace {

// Every float prints as its bits: exact, and valid for nan and the infinities.
std::string float_literal(double value, DType dtype) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%0*llX", static_cast<int>(bit_width(dtype) / 4),
                static_cast<unsigned long long>(bits_of_float(value, dtype)));
  return text;
}

// Takes the number itself, or the bits of one as the other kind of integer of this width has them.
std::string integer_literal(int64_t value, DType dtype) {
  const size_t width = bit_width(dtype);
  const auto bits = static_cast<uint64_t>(value);
  if (width == 64) return is_unsigned(dtype) ? std::to_string(bits) : std::to_string(value);
  const int64_t lowest = -(int64_t{1} << (width - 1)), highest = (int64_t{1} << width) - 1;
  TXLA_CHECK(value >= lowest && value <= highest, "constant: expected a value that ", name(dtype),
             " holds, got ", value, ". Convert a constant of a wider type.");
  if (is_unsigned(dtype)) return std::to_string(bits & static_cast<uint64_t>(highest));
  return std::to_string(value > highest / 2 ? value - highest - 1 : value);
}

std::string literal_int(int64_t value, DType dtype);

std::string literal(double value, DType dtype) {
  if (dtype == DType::Pred) return value != 0 ? "true" : "false";
  if (is_complex(dtype)) {
    const DType part = real_part(dtype);
    return "(" + float_literal(value, part) + "," + float_literal(0.0, part) + ")";
  }
  if (is_float(dtype)) return float_literal(value, dtype);
  TXLA_CHECK(value >= -0x1p63 && value < (dtype == DType::U64 ? 0x1p64 : 0x1p63),
             "constant: expected a value that ", name(dtype), " holds, got ", value, ".");
  return integer_literal(value >= 0x1p63 ? static_cast<int64_t>(static_cast<uint64_t>(value))
                                         : static_cast<int64_t>(value),
                         dtype);
}

std::string literal_int(int64_t value, DType dtype) {
  if (dtype == DType::Pred) return value != 0 ? "true" : "false";
  if (is_integer(dtype)) return integer_literal(value, dtype);
  return literal(static_cast<double>(value), dtype);
}

// An array with no elements has no splat value.
Value dense_splat(Builder& b, const std::string& text, const Type& type) {
  return b.constant(type.elements() == 0 ? "" : text, type);
}

// A literal of any rank: printed flat, reshaped where it has several dimensions.
template <typename T>
Value dense(Builder& b, std::span<const T> values, const Type& type,
            std::string (*print)(T, DType)) {
  const auto count = static_cast<int64_t>(values.size());
  TXLA_CHECK(count == type.elements(), "constant: expected as many values as ", type.str(),
             " has elements, got ", count, ".");
  if (values.empty()) return b.constant("", type);
  if (type.dims.size() > 1)
    return reshape(dense(b, values, type.with(Dims{count}), print), type.dims);
  std::string text = type.dims.empty() ? "" : "[";
  for (size_t i = 0; i < values.size(); ++i) {
    if (i != 0) text += ", ";
    text += print(values[i], type.dtype);
  }
  if (!type.dims.empty()) text += "]";
  return b.constant(text, type);
}

void check_ordered(std::string_view op, const Type& type) {
  TXLA_CHECK(!is_complex(type.dtype), op, ": expected numbers that have an order, got ", type.str(),
             ".");
}

}  // namespace

Value splat(Builder& b, double value, const Type& type) {
  return dense_splat(b, literal(value, type.dtype), type);
}
Value splat_int(Builder& b, int64_t value, const Type& type) {
  return dense_splat(b, literal_int(value, type.dtype), type);
}
Value scalar(Builder& b, double value, DType dtype) { return splat(b, value, {dtype, {}}); }
Value scalar_int(Builder& b, int64_t value, DType dtype) {
  return splat_int(b, value, {dtype, {}});
}
Value zero(Builder& b, const Type& type) { return splat_int(b, 0, type); }
Value one(Builder& b, const Type& type) { return splat_int(b, 1, type); }

Value lowest(Builder& b, const Type& type) {
  check_ordered("lowest", type);
  if (is_float(type.dtype)) {
    return splat(b,
                 has_infinity(type.dtype) ? -std::numeric_limits<double>::infinity()
                                          : -largest_finite(type.dtype),
                 type);
  }
  if (type.dtype == DType::Pred || is_unsigned(type.dtype)) return zero(b, type);
  return splat_int(b, std::numeric_limits<int64_t>::min() >> (64 - bit_width(type.dtype)), type);
}

Value highest(Builder& b, const Type& type) {
  check_ordered("highest", type);
  if (is_float(type.dtype)) {
    return splat(b,
                 has_infinity(type.dtype) ? std::numeric_limits<double>::infinity()
                                          : largest_finite(type.dtype),
                 type);
  }
  if (type.dtype == DType::Pred) return one(b, type);
  if (is_unsigned(type.dtype)) {
    return splat_int(b, static_cast<int64_t>(~uint64_t{0} >> (64 - bit_width(type.dtype))), type);
  }
  return splat_int(b, std::numeric_limits<int64_t>::max() >> (64 - bit_width(type.dtype)), type);
}

Value finite_highest(Builder& b, const Type& type) {
  return is_float(type.dtype) ? splat(b, largest_finite(type.dtype), type) : highest(b, type);
}

Value dense_ints(Builder& b, std::span<const int64_t> values, const Type& type) {
  return dense(b, values, type, literal_int);
}
Value dense_floats(Builder& b, std::span<const double> values, const Type& type) {
  return dense(b, values, type, literal);
}

Value dense_bytes(Builder& b, std::span<const char> bytes, const Type& type) {
  TXLA_CHECK(bytes.size() == static_cast<size_t>(type.elements()) * byte_size(type.dtype),
             "constant: expected as many bytes as ", type.str(), " has, got ", bytes.size(), ".");
  if (type.dtype == DType::Pred) {  // MLIR packs their bits
    const std::vector<int64_t> values(bytes.begin(), bytes.end());
    return dense_ints(b, values, type);
  }
  if (bytes.empty()) return b.constant("", type);
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string text = "\"0x";
  text.reserve(2 * bytes.size() + 4);
  for (const unsigned char byte : bytes) {
    text += kHex[byte >> 4];
    text += kHex[byte & 15];
  }
  return b.constant(text + "\"", type);
}

Value iota(Builder& b, const Type& type, int64_t dim) {
  TXLA_CHECK(dim >= 0 && dim < type.rank(), "iota: expected a dimension of ", type.str(), ", got ",
             dim, ".");
  return b.op("stablehlo.iota", {}, type, {{"iota_dimension", attr::i64(dim)}});
}

}  // namespace torch_xla::hlo
