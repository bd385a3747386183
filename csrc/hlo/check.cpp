#include "hlo/check.h"

#include <algorithm>
#include <unordered_map>

namespace torch_xla::hlo {
namespace {

// Kinds of elements.
enum Kind : unsigned { kTruth = 1, kInteger = 2, kFloat = 4, kComplex = 8 };

Kind kind_of(DType dtype) {
  if (is_complex(dtype)) return kComplex;
  if (is_float(dtype)) return kFloat;
  return dtype == DType::Pred ? kTruth : kInteger;
}

std::string show(unsigned kinds) {
  std::string text;
  const auto add = [&](Kind kind, const char* name) {
    if ((kinds & kind) == 0) return;
    if (!text.empty()) text += " or ";
    text += name;
  };
  add(kTruth, "bits");
  add(kInteger, "integers");
  add(kFloat, "floats");
  add(kComplex, "complex numbers");
  return text;
}

// The kinds that the StableHLO specification and CHLO permit; operations of any elements are not
// here. Products of bits are permitted, but XLA's CPU compiler ends the process where a sum follows
// one.
const std::unordered_map<std::string_view, unsigned>& permitted() {
  constexpr unsigned kNumbers = kInteger | kFloat | kComplex, kBits = kTruth | kInteger;
  static const std::unordered_map<std::string_view, unsigned> kTable = [] {
    std::unordered_map<std::string_view, unsigned> table;
    const auto add = [&](unsigned kinds, std::initializer_list<std::string_view> names) {
      for (const std::string_view name : names) table.emplace(name, kinds);
    };
    add(kNumbers,
        {"stablehlo.negate", "stablehlo.subtract", "stablehlo.divide", "stablehlo.remainder",
         "stablehlo.power", "stablehlo.dot_general", "stablehlo.convolution"});
    // Complex numbers are permitted, compared part by part: an order that PyTorch does not have.
    add(kBits | kFloat, {"stablehlo.maximum", "stablehlo.minimum"});
    add(kBits, {"stablehlo.and", "stablehlo.or", "stablehlo.xor", "stablehlo.not"});
    add(kInteger,
        {"stablehlo.shift_left", "stablehlo.shift_right_arithmetic",
         "stablehlo.shift_right_logical", "stablehlo.popcnt", "stablehlo.count_leading_zeros"});
    add(kFloat,
        {"stablehlo.ceil", "stablehlo.floor", "stablehlo.round_nearest_afz",
         "stablehlo.round_nearest_even", "chlo.erf", "chlo.erfc", "chlo.erf_inv", "chlo.lgamma",
         "chlo.digamma", "chlo.bessel_i1e", "chlo.next_after", "chlo.zeta", "chlo.polygamma"});
    add(kFloat | kComplex,
        {"stablehlo.exponential", "stablehlo.exponential_minus_one", "stablehlo.log",
         "stablehlo.log_plus_one", "stablehlo.logistic", "stablehlo.tanh", "stablehlo.sine",
         "stablehlo.cosine", "stablehlo.tan", "stablehlo.sqrt", "stablehlo.rsqrt", "stablehlo.cbrt",
         "stablehlo.atan2"});
    return table;
  }();
  return kTable;
}

}  // namespace

std::string show(const Value& x) { return x ? x.type().str() : "a value that was never built"; }

std::string show(std::span<const int64_t> dims) {
  std::string text = "[";
  for (size_t i = 0; i < dims.size(); ++i) {
    if (i != 0) text += ", ";
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

void check_same_type(std::string_view op, const Value& x, const Value& y) {
  TXLA_CHECK(x && y && x.type() == y.type(), op, ": expected two operands of one type, got ",
             show(x), " and ", show(y), ". Convert or broadcast one of them.");
}

void check_elements(std::string_view op, const Value& x) {
  const auto it = permitted().find(op);
  if (it == permitted().end()) return;
  TXLA_CHECK(x && (it->second & kind_of(x.dtype())) != 0, op, ": expected ", show(it->second),
             ", got ", show(x), ".");
}

void check_dim(std::string_view op, const Value& x, int64_t dim) {
  TXLA_CHECK(x && dim >= 0 && dim < x.rank(), op, ": expected a dimension of ", show(x), ", got ",
             dim, ".");
}

void check_dims(std::string_view op, const Value& x, std::span<const int64_t> dims) {
  for (int64_t dim : dims) {
    check_dim(op, x, dim);
    TXLA_CHECK(std::count(dims.begin(), dims.end(), dim) == 1, op,
               ": expected each dimension once, got ", show(dims), ".");
  }
}

void check_per_dim(std::string_view op, std::string_view what, const Value& x,
                   std::span<const int64_t> given) {
  TXLA_CHECK(x && static_cast<int64_t>(given.size()) == x.rank(), op, ": expected one ", what,
             " for each dimension of ", show(x), ", got ", show(given), ".");
}

}  // namespace torch_xla::hlo
