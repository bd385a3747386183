#include "hlo/pretty_attribute.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <vector>

#include "hlo/builder.h"
#include "hlo/float_bits.h"
#include "util/error.h"

namespace torch_xla::hlo {
namespace {

// None for other types than those of numbers.
std::optional<DType> dtype_named(std::string_view text) {
  if (text == "index") return DType::S64;
  for (int i = 0; i <= static_cast<int>(DType::C128); ++i) {
    if (name(static_cast<DType>(i)) == text) return static_cast<DType>(i);
  }
  return std::nullopt;
}

struct ArrayType {
  std::vector<int64_t> dims;
  std::optional<DType> element;
  int64_t elements = 1;
};

// Takes the sizes off `type`, and leaves the element type.
ArrayType array_type(std::string_view& type) {
  ArrayType array;
  type.remove_prefix(std::string_view("tensor<").size());
  type.remove_suffix(1);
  for (size_t x = type.find('x'); x != type.npos; x = type.find('x')) {
    if (type.find_first_not_of("0123456789?") != x) break;
    array.dims.push_back(std::atoll(std::string(type.substr(0, x)).c_str()));
    array.elements *= array.dims.back();
    type.remove_prefix(x + 1);
  }
  array.element = dtype_named(type);
  return array;
}

// The significant digits of a number, without zeros at their end; the first stands for `power` of
// ten.
struct Decimal {
  std::string digits;
  int power;
};

// Takes at most `most` digits, as LLVM does: it first cuts what is some digits too long, then
// rounds half up.
Decimal decimal(double magnitude, int most) {
  if (magnitude == 0) return {"0", 0};
  int exponent = 0;
  double odd = std::ldexp(std::frexp(magnitude, &exponent), 53);
  exponent -= 53;
  for (; std::fmod(odd, 2) == 0; odd /= 2) ++exponent;
  // The number is an integer by a power of ten: odd * 5^n * 10^-n, or odd * 2^n.
  const int tens = std::max(0, -exponent);
  const double width = std::log2(odd) + (exponent < 0 ? tens * std::log2(5.0) : exponent);
  std::string text(400 + static_cast<size_t>(tens), '0');
  text.resize(
      static_cast<size_t>(std::snprintf(text.data(), text.size(), "%.*f", tens, magnitude)));
  std::erase(text, '.');
  text.erase(0, text.find_first_not_of('0'));
  Decimal d{text, static_cast<int>(text.size()) - 1 - tens};
  const int excess = static_cast<int>(std::floor(width)) + 1 - (most * 196 + 58) / 59;
  if (excess > 0) d.digits.resize(d.digits.size() - static_cast<size_t>(excess * 59 / 196));
  if (d.digits.size() > static_cast<size_t>(most)) {
    const bool up = d.digits[static_cast<size_t>(most)] >= '5';
    d.digits.resize(static_cast<size_t>(most));
    while (up && !d.digits.empty() && d.digits.back() == '9') d.digits.pop_back();
    if (up && d.digits.empty()) return {"1", d.power + 1};
    if (up) ++d.digits.back();
  }
  d.digits.resize(d.digits.find_last_not_of('0') + 1);
  return d;
}

// With six digits behind the point, of which five count: 1.234500e+00.
std::string with_exponent(const Decimal& d) {
  std::string text = d.digits.substr(0, 1) + "." + d.digits.substr(1);
  text.resize(8, '0');
  char exponent[16];
  std::snprintf(exponent, sizeof exponent, "e%c%02d", d.power < 0 ? '-' : '+', std::abs(d.power));
  return text + exponent;
}

// As long as exactness needs, without an exponent where that is not much longer.
std::string plain(const Decimal& d, int most) {
  constexpr int kMostZeros = 3;
  const int digits = static_cast<int>(d.digits.size());
  const int behind =
      d.power - digits + 1;  // zeros that follow, or minus the digits after the point
  const bool scientific = behind >= 0 ? behind > kMostZeros || digits + behind > most
                                      : d.power < 0 && -d.power > kMostZeros;
  if (scientific) {
    return d.digits.substr(0, 1) + "." + (digits == 1 ? "0" : d.digits.substr(1)) + "E" +
           (d.power < 0 ? "-" : "+") + std::to_string(std::abs(d.power));
  }
  if (behind >= 0) return d.digits + std::string(static_cast<size_t>(behind), '0');
  if (d.power < 0) return "0." + std::string(static_cast<size_t>(-d.power - 1), '0') + d.digits;
  const auto whole = static_cast<size_t>(d.power) + 1;
  return d.digits.substr(0, whole) + "." + d.digits.substr(whole);
}

std::string hex(uint64_t bits) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llX", static_cast<unsigned long long>(bits));
  return text;
}

std::string pretty_float(uint64_t bits, DType dtype) {
  const double value = float_of_bits(bits, dtype);
  if (std::isnan(value) || std::isinf(value)) return hex(bits);
  const std::string sign = std::signbit(value) ? "-" : "";
  const auto is_exact = [&](const std::string& text) {
    return bits_of_float(dtype == DType::F32 ? std::strtof(text.c_str(), nullptr)
                                             : std::strtod(text.c_str(), nullptr),
                         dtype) == bits;
  };
  const std::string brief = sign + with_exponent(decimal(std::abs(value), 6));
  if (is_exact(brief)) return brief;
  const int most = 2 + significand_bits(dtype) * 59 / 196;
  const std::string exact = sign + plain(decimal(std::abs(value), most), most);
  return exact.find('.') != exact.npos ? exact : hex(bits);
}

uint64_t low_bits(uint64_t value, size_t width) {
  return width == 64 ? value : value & ((uint64_t{1} << width) - 1);
}

// The elements of a literal, as bits: both halves of complex numbers.
class Elements {
 public:
  Elements(std::string_view literal, DType dtype)
      : dtype_(real_part(dtype)), width_(bit_width(dtype_)) {
    if (literal.starts_with("\"0x")) {
      read_hex(literal.substr(3, literal.size() - 4));
    } else {
      read(literal);
    }
  }
  std::vector<uint64_t> bits;

 private:
  void read_hex(std::string_view digits) {
    const size_t bytes = (width_ + 7) / 8;
    const auto nibble = [](char c) { return c <= '9' ? c - '0' : (c | 32) - 'a' + 10; };
    for (size_t at = 0; at + 2 * bytes <= digits.size(); at += 2 * bytes) {
      uint64_t value = 0;
      for (size_t i = bytes; i-- > 0;) {  // the lowest byte comes first
        value = value << 8 | static_cast<uint64_t>(nibble(digits[at + 2 * i]) * 16 +
                                                   nibble(digits[at + 2 * i + 1]));
      }
      bits.push_back(value);
    }
  }

  // A number, or numbers in any brackets.
  void read(std::string_view text) {
    for (size_t at = 0; at < text.size();) {
      at = text.find_first_not_of("[](), ", at);
      if (at == text.npos) return;
      const size_t end = std::min(text.find_first_of("[](), ", at), text.size());
      bits.push_back(number(std::string(text.substr(at, end - at))));
      at = end;
    }
  }

  uint64_t number(const std::string& text) const {
    if (dtype_ == DType::Pred) return text == "true" ? 1 : 0;
    if (text.starts_with("0x")) return std::strtoull(text.c_str() + 2, nullptr, 16);
    if (!is_float(dtype_)) {
      const bool negative = text.starts_with("-");
      return low_bits(negative ? static_cast<uint64_t>(std::strtoll(text.c_str(), nullptr, 10))
                               : std::strtoull(text.c_str(), nullptr, 10),
                      width_);
    }
    return bits_of_float(dtype_ == DType::F32 ? std::strtof(text.c_str(), nullptr)
                                              : std::strtod(text.c_str(), nullptr),
                         dtype_);
  }

  DType dtype_;
  size_t width_;
};

std::string pretty_number(uint64_t bits, DType dtype) {
  if (dtype == DType::Pred) return bits != 0 ? "true" : "false";
  if (is_float(dtype)) return pretty_float(bits, dtype);
  const size_t width = bit_width(dtype);
  if (is_unsigned(dtype)) return std::to_string(bits);
  return std::to_string(static_cast<int64_t>(bits << (64 - width)) >> (64 - width));
}

void append_nested(std::string& text, std::span<const std::string> values,
                   std::span<const int64_t> dims) {
  if (dims.empty()) {
    text += values[0];
    return;
  }
  text += '[';
  const size_t part = values.size() / static_cast<size_t>(dims[0]);
  for (size_t i = 0; i < static_cast<size_t>(dims[0]); ++i) {
    if (i != 0) text += ", ";
    append_nested(text, values.subspan(i * part, part), dims.subspan(1));
  }
  text += ']';
}

// As MLIR writes long literals: the lowest byte of each value first, and eight truth values a byte.
std::string all_bytes(std::span<const uint64_t> values, DType dtype) {
  static constexpr char kHex[] = "0123456789ABCDEF";
  std::string text = "\"0x";
  const auto put = [&](uint64_t value, size_t bytes) {
    for (; bytes > 0; --bytes, value >>= 8) {
      text += kHex[value >> 4 & 15];
      text += kHex[value & 15];
    }
  };
  if (dtype != DType::Pred) {
    for (const uint64_t value : values) put(value, byte_size(dtype));
    return text + "\"";
  }
  for (size_t at = 0; at < values.size(); at += 8) {
    uint64_t packed = 0;
    for (size_t i = at; i < std::min(at + 8, values.size()); ++i) packed |= values[i] << (i - at);
    put(packed, 1);
  }
  return text + "\"";
}

std::string unquoted(std::string_view quoted) {
  std::string value;
  for (size_t i = 1; i + 1 < quoted.size(); ++i) {
    if (quoted[i] != '\\') {
      value += quoted[i];
    } else if (const size_t escape = std::string_view("\"\\nt").find(quoted[i + 1]);
               escape != std::string_view::npos) {
      value += "\"\\\n\t"[escape];
      ++i;
    } else {
      value +=
          static_cast<char>(std::strtol(std::string(quoted.substr(i + 1, 2)).c_str(), nullptr, 16));
      i += 2;
    }
  }
  return value;
}

// `is_member`: of an array, which does not say that integers are i64 and floats f64.
std::string pretty_scalar(std::string_view text, bool is_member) {
  const size_t colon = text.find(" : ");
  std::string_view number = text.substr(0, colon);
  const bool is_number = !number.empty() && (number[0] == '-' || std::isdigit(number[0]));
  if (!is_number) return std::string(text);
  const bool is_integer_text = number.find_first_not_of("-0123456789") == number.npos;
  std::string_view type = is_integer_text ? "i64" : "f64";
  if (colon != text.npos) type = text.substr(colon + 3);
  const std::optional<DType> dtype = dtype_named(type);
  std::string value(number);
  if (dtype) value = pretty_number(Elements(number, *dtype).bits.at(0), *dtype);
  if (is_member && (type == "i64" || type == "f64")) return value;
  return value + " : " + std::string(type);
}

std::string pretty(std::string_view text, bool is_member);

std::string pretty_members(std::string_view list) {
  std::string text = "[";
  for (const std::string_view member : members_of(list)) {
    if (text.size() > 1) text += ", ";
    text += pretty(member, true);
  }
  return text + "]";
}

// `#stablehlo.gather<a = [1], b = []>`: what is empty or zero is left out.
std::string pretty_fields(std::string_view text) {
  const size_t open = text.find('<');
  std::string fields;
  for (const NamedText& field : entries_of(text.substr(open + 1, text.size() - open - 2))) {
    if (field.text == "[]" || field.text == "0") continue;
    if (!fields.empty()) fields += ", ";
    fields += std::string(field.name) + " = " + std::string(field.text);
  }
  return std::string(text.substr(0, open + 1)) + fields + ">";
}

std::string pretty(std::string_view text, bool is_member) {
  const auto inside = [&] { return text.substr(1, text.size() - 2); };
  switch (text.empty() ? ' ' : text[0]) {
    case '{':
      return "{" + pretty_entries(entries_of(inside())) + "}";
    case '[':
      return pretty_members(inside());
    case '"':
      return attr::string(unquoted(text));
    case '@':
      return pretty_symbol(text);
    default:
      break;
  }
  if (text.starts_with("dense<")) {
    const size_t end = end_of_bracket(text, 5);
    const std::string_view type = text.substr(end + 3);
    return "dense<" + pretty_literal(text.substr(6, end - 7), type) + "> : " + std::string(type);
  }
  if (text.starts_with("#stablehlo.gather<") || text.starts_with("#stablehlo.scatter<")) {
    return pretty_fields(text);
  }
  return pretty_scalar(text, is_member);
}

}  // namespace

std::string pretty_literal(std::string_view literal, std::string_view type) {
  constexpr int64_t kMostInWords = 100;
  const ArrayType array = array_type(type);
  if (array.elements == 0 || !array.element) return std::string(literal);
  const DType part = real_part(*array.element);
  const size_t parts = is_complex(*array.element) ? 2 : 1;
  const std::vector<uint64_t> bits = Elements(literal, *array.element).bits;
  const std::span<const uint64_t> first = std::span(bits).first(std::min(parts, bits.size()));
  bool is_splat = true;
  for (size_t i = 0; i < bits.size(); ++i) is_splat = is_splat && bits[i] == first[i % parts];
  const auto in_words = [&](size_t i) {
    const std::string number = pretty_number(bits[i * parts], part);
    if (parts == 1) return number;
    return "(" + number + "," + pretty_number(bits[i * parts + 1], part) + ")";
  };
  if (is_splat) return in_words(0);
  if (array.elements > kMostInWords) return all_bytes(bits, part);
  std::vector<std::string> values;
  for (size_t i = 0; i < bits.size() / parts; ++i) values.push_back(in_words(i));
  std::string text;
  append_nested(text, values, array.dims);
  return text;
}

std::string_view element_of(std::string_view type) {
  array_type(type);
  return type;
}

std::string pretty_attribute(std::string_view text) { return pretty(text, false); }

std::string pretty_entries(std::span<const NamedText> entries) {
  std::vector<NamedText> sorted(entries.begin(), entries.end());
  const auto bare = [](const NamedText& entry) {
    return entry.name.starts_with('"') ? unquoted(entry.name) : std::string(entry.name);
  };
  std::ranges::sort(sorted, {}, bare);
  std::string text;
  for (const NamedText& entry : sorted) {
    if (!text.empty()) text += ", ";
    text += attr::symbol(bare(entry)).substr(1);
    if (!entry.text.empty() && entry.text != "unit") text += " = " + pretty_attribute(entry.text);
  }
  return text;
}

std::string pretty_symbol(std::string_view symbol) {
  symbol.remove_prefix(1);
  if (!symbol.starts_with('"')) return "@" + std::string(symbol);
  return attr::symbol(unquoted(symbol));
}

}  // namespace torch_xla::hlo
