// Formulas on values written as formulas: arithmetic operators and comparisons, with plain numbers
// standing for constants of the other operand's type.
#pragma once

#include "hlo/ops.h"

namespace torch_xla::hlo {

// Makes a constant of x's type.
inline Value like(const Value& x, double value) { return splat(x.builder(), value, x.type()); }

inline Value operator+(const Value& x, const Value& y) { return add(x, y); }
inline Value operator-(const Value& x, const Value& y) { return sub(x, y); }
inline Value operator*(const Value& x, const Value& y) { return mul(x, y); }
inline Value operator/(const Value& x, const Value& y) { return div(x, y); }
inline Value operator+(const Value& x, double y) { return add(x, like(x, y)); }
inline Value operator-(const Value& x, double y) { return sub(x, like(x, y)); }
inline Value operator*(const Value& x, double y) { return mul(x, like(x, y)); }
inline Value operator/(const Value& x, double y) { return div(x, like(x, y)); }
inline Value operator+(double x, const Value& y) { return add(like(y, x), y); }
inline Value operator-(double x, const Value& y) { return sub(like(y, x), y); }
inline Value operator*(double x, const Value& y) { return mul(like(y, x), y); }
inline Value operator/(double x, const Value& y) { return div(like(y, x), y); }
inline Value operator-(const Value& x) { return neg(x); }

// On predicates and integers: bit by bit.
inline Value operator&(const Value& x, const Value& y) { return logical_and(x, y); }
inline Value operator|(const Value& x, const Value& y) { return logical_or(x, y); }
// This is not `!`, which asks whether a value is there at all.
inline Value operator~(const Value& x) { return logical_not(x); }

inline Value equal(const Value& x, const Value& y) { return compare(Direction::EQ, x, y); }
inline Value not_equal(const Value& x, const Value& y) { return compare(Direction::NE, x, y); }
inline Value less(const Value& x, const Value& y) { return compare(Direction::LT, x, y); }
inline Value less_equal(const Value& x, const Value& y) { return compare(Direction::LE, x, y); }
inline Value greater(const Value& x, const Value& y) { return compare(Direction::GT, x, y); }
inline Value greater_equal(const Value& x, const Value& y) { return compare(Direction::GE, x, y); }
inline Value equal(const Value& x, double y) { return equal(x, like(x, y)); }
inline Value not_equal(const Value& x, double y) { return not_equal(x, like(x, y)); }
inline Value less(const Value& x, double y) { return less(x, like(x, y)); }
inline Value less_equal(const Value& x, double y) { return less_equal(x, like(x, y)); }
inline Value greater(const Value& x, double y) { return greater(x, like(x, y)); }
inline Value greater_equal(const Value& x, double y) { return greater_equal(x, like(x, y)); }

inline Value select(const Value& pred, const Value& on_true, double on_false) {
  return select(pred, on_true, like(on_true, on_false));
}
inline Value select(const Value& pred, double on_true, const Value& on_false) {
  return select(pred, like(on_false, on_true), on_false);
}

// False for every integer.
inline Value is_nan(const Value& x) { return not_equal(x, x); }

inline Value floor(const Value& x) { return unary("floor", x); }
inline Value ceil(const Value& x) { return unary("ceil", x); }
inline Value sin(const Value& x) { return unary("sine", x); }
inline Value cos(const Value& x) { return unary("cosine", x); }
inline Value expm1(const Value& x) { return unary("exponential_minus_one", x); }
inline Value log1p(const Value& x) { return unary("log_plus_one", x); }
inline Value erf(const Value& x) { return chlo_unary("erf", x); }
inline Value erfc(const Value& x) { return chlo_unary("erfc", x); }
inline Value square(const Value& x) { return mul(x, x); }
inline Value atan2(const Value& y, const Value& x) { return binary("atan2", y, x); }

}  // namespace torch_xla::hlo
