#include "hlo/fold_numbers.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "hlo/float_bits.h"
#include "hlo/types.h"

namespace torch_xla::hlo {
namespace {

std::optional<DType> dtype_of(std::string_view element) {
  for (int d = 0; d <= static_cast<int>(DType::C128); ++d) {
    if (name(static_cast<DType>(d)) == element) return static_cast<DType>(d);
  }
  return std::nullopt;
}

// "f32" of "tensor<2x3xf32>"; of complex elements nothing that has a DType.
std::string_view element_of(std::string_view type) {
  if (type.find("complex") != type.npos) return {};
  const size_t from = type.find_last_of("<x");
  return type.substr(from + 1, type.find('>') - from - 1);
}

// A number as programs write it: of a float its bits.
struct Number {
  std::string text;
  DType dtype;

  // None where that would not be exact or is not looked into.
  std::optional<Number> as(DType to) const {
    const bool is_signed = is_integer(dtype) && !is_unsigned(dtype);
    if (is_float(dtype) && is_float(to)) return of_float(float_value(), to);
    if (!is_signed) return std::nullopt;
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
    if (is_float(to)) {
      constexpr int64_t kExact = int64_t{1} << 53;
      if (value > kExact || value < -kExact) return std::nullopt;
      return of_float(static_cast<double>(value), to);
    }
    if (to == DType::Pred) return Number{value != 0 ? "true" : "false", to};
    if (!is_integer(to) || is_unsigned(to)) return std::nullopt;
    const int shift = 64 - static_cast<int>(bit_width(to));
    if (shift > 0 && (value << shift) >> shift != value) return std::nullopt;
    return Number{text, to};
  }

 private:
  double float_value() const {
    uint64_t bits = 0;
    std::from_chars(text.data() + 2, text.data() + text.size(), bits, 16);  // behind 0x
    return float_of_bits(bits, dtype);
  }
  static std::optional<Number> of_float(double value, DType to) {
    if (std::isnan(value)) return std::nullopt;
    char text[32];
    std::snprintf(text, sizeof text, "0x%0*llX", static_cast<int>(bit_width(to) / 4),
                  static_cast<unsigned long long>(bits_of_float(value, to)));
    return Number{text, to};
  }
};

class Folder {
 public:
  explicit Folder(std::deque<std::string>& texts) : texts_(texts) {}

  void fold(Block& block) {
    for (Operation& o : block.operations) {
      fold(o);
      for (const std::string_view operand : o.operands) used_.insert(operand);
      for (Block& region : o.regions) fold(region);
    }
  }

  void drop_unused(Block& block) const {
    std::erase_if(block.operations, [this](const Operation& o) {
      return o.name == "stablehlo.constant" && numbers_.contains(o.results[0]) &&
             !used_.contains(o.results[0]);
    });
    for (Operation& o : block.operations) {
      for (Block& region : o.regions) drop_unused(region);
    }
  }

 private:
  void fold(Operation& o) {
    if (o.results.size() != 1) return;
    const std::string_view type = o.result_types[0];
    const std::optional<DType> dtype = dtype_of(element_of(type));
    if (!dtype) return;
    if (o.name == "stablehlo.constant") {
      const std::string_view value = o.attribute("value");
      const bool is_scalar = type.find('x') == type.npos && value.starts_with("dense<");
      if (is_scalar)
        numbers_[o.results[0]] = {std::string(value.substr(6, value.find('>') - 6)), *dtype};
      return;
    }
    const bool converts = o.name == "stablehlo.convert";
    if (!converts && o.name != "stablehlo.broadcast_in_dim") return;
    const auto known = numbers_.find(o.operands[0]);
    if (known == numbers_.end() || type.find('?') != type.npos) return;
    const auto number = converts ? known->second.as(*dtype) : std::optional<Number>(known->second);
    if (!number) return;
    o.name = "stablehlo.constant";
    o.operands.clear();
    o.operand_types.clear();
    o.attributes = {
        {"value", texts_.emplace_back("dense<" + number->text + "> : " + std::string(type))}};
    numbers_[o.results[0]] = *number;
  }

  std::deque<std::string>& texts_;
  std::unordered_map<std::string_view, Number> numbers_;  // equal in all elements
  std::unordered_set<std::string_view> used_;
};

}  // namespace

void fold_numbers(Block& function, std::deque<std::string>& texts) {
  Folder folder(texts);
  folder.fold(function);
  folder.drop_unused(function);
}

}  // namespace torch_xla::hlo
