// Comparisons, logic, bits, selection and masks.
#include <limits>

#include <ATen/ops/eq_meta_dispatch.h>
#include <ATen/ops/result_type.h>

#include "ops/elementwise.h"
#include "ops/meta.h"
#include "ops/rules.h"

namespace torch_xla::ops {
namespace {

using hlo::Direction;
using hlo::DType;
using hlo::Value;
using hlo::Values;

// PyTorch rounds both sides to the promoted dtype before it compares: bf16(0.1) == 0.1 is true.
template <Direction direction>
Values comparison(Lowering& l) {
  const DType dtype = to_hlo(l.promoted({0, 1}));
  return result(l, hlo::compare(direction, operand(l, 0, dtype), operand(l, 1, dtype)));
}

template <BinaryFormula formula>
Values logical(Lowering& l) {
  return result(l, formula(operand(l, 0, DType::Pred), operand(l, 1, DType::Pred)));
}

Values logical_not(Lowering& l) { return result(l, ~cast(l.in(0), DType::Pred)); }

Value left_shift(const Value& x, const Value& by) { return hlo::binary("shift_left", x, by); }

// Amounts past the width, and negative ones, leave nothing but the sign: StableHLO's own reading.
Value right_shift(const Value& x, const Value& by) {
  return hlo::binary(hlo::is_unsigned(x.dtype()) ? "shift_right_logical" : "shift_right_arithmetic",
                     x, by);
}

Values where(Lowering& l) {
  const DType dtype = l.out().dtype;
  return {hlo::select(operand(l, 0, DType::Pred), operand(l, 1, dtype), operand(l, 2, dtype))};
}

Values masked_fill(Lowering& l) {
  const DType dtype = l.out().dtype;
  return {hlo::select(operand(l, 1, DType::Pred), operand(l, 2, dtype), operand(l, 0, dtype))};
}

// --- predicates of one operand ---------------------------------------------------------------

Values isnan(Lowering& l) {
  const Value x = l.in(0);
  if (!hlo::is_complex(x.dtype())) return {hlo::is_nan(x)};
  return {hlo::is_nan(hlo::real(x)) | hlo::is_nan(hlo::imag(x))};
}
Values isinf(Lowering& l) { return {is_inf(l.in(0))}; }

template <bool positive>
Values is_signed_inf(Lowering& l) {
  const Value x = l.in(0);
  if (!hlo::is_float(x.dtype())) return {hlo::zero(l.b, l.out())};
  const double infinity = std::numeric_limits<double>::infinity();
  return {hlo::equal(x, positive ? infinity : -infinity)};
}
Values signbit(Lowering& l) { return {sign_bit(l.in(0))}; }

}  // namespace

// Composite operators recorded whole on purpose: logical_*, masked_fill, isinf, and the Scalar
// overloads of bitwise_* and shifts, whose composites copy a number to the device.
namespace {

// (self, other): the strides are those of a comparison.
void logical_meta(MetaCall& call) {
  const at::Tensor &self = call.tensor(0), &other = call.tensor(1);
  call.results({at::meta::eq(self, other)});
}

// where(condition, self, other)
void where_meta(MetaCall& call) {
  for (size_t i = 0; i < call.size(); ++i) {
    if (!call[i].isTensor()) return call.pytorch();
  }
  const at::Tensor condition = call.tensor(0), self = call.tensor(1), other = call.tensor(2);
  if (condition.scalar_type() != at::kBool) return call.pytorch();
  call.results({meta_of_elementwise({condition, self, other}, at::result_type(self, other))});
}

}  // namespace

namespace rules {

const RuleFunction masked_fill = ops::masked_fill;

}  // namespace rules

const Rules elementwise_compare_rules([](Registry& r) {
  const auto add = [&r](std::initializer_list<const char*> names, RuleFunction rule) {
    for (const char* name : names) r.add(name, rule);
  };
  add({"aten::eq.Tensor", "aten::eq.Scalar"}, comparison<Direction::EQ>);
  add({"aten::ne.Tensor", "aten::ne.Scalar"}, comparison<Direction::NE>);
  add({"aten::lt.Tensor", "aten::lt.Scalar"}, comparison<Direction::LT>);
  add({"aten::le.Tensor", "aten::le.Scalar"}, comparison<Direction::LE>);
  add({"aten::gt.Tensor", "aten::gt.Scalar"}, comparison<Direction::GT>);
  add({"aten::ge.Tensor", "aten::ge.Scalar"}, comparison<Direction::GE>);

  r.add("aten::logical_and", logical<hlo::logical_and>);
  r.add("aten::logical_or", logical<hlo::logical_or>);
  r.add("aten::logical_xor", logical<hlo::logical_xor>);
  r.add("aten::logical_not", logical_not);

  add({"aten::bitwise_and.Tensor", "aten::bitwise_and.Scalar", "aten::bitwise_and.Scalar_Tensor"},
      binary_rule<hlo::logical_and>);
  add({"aten::bitwise_or.Tensor", "aten::bitwise_or.Scalar", "aten::bitwise_or.Scalar_Tensor"},
      binary_rule<hlo::logical_or>);
  add({"aten::bitwise_xor.Tensor", "aten::bitwise_xor.Scalar", "aten::bitwise_xor.Scalar_Tensor"},
      binary_rule<hlo::logical_xor>);
  r.add("aten::bitwise_not", unary_rule<hlo::logical_not>);
  add({"aten::bitwise_left_shift.Tensor", "aten::bitwise_left_shift.Tensor_Scalar",
       "aten::bitwise_left_shift.Scalar_Tensor", "aten::__lshift__.Tensor",
       "aten::__lshift__.Scalar"},
      binary_rule<left_shift>);
  add({"aten::bitwise_right_shift.Tensor", "aten::bitwise_right_shift.Tensor_Scalar",
       "aten::bitwise_right_shift.Scalar_Tensor", "aten::__rshift__.Tensor",
       "aten::__rshift__.Scalar"},
      binary_rule<right_shift>);

  r.add("aten::where.self", where);

  r.add("aten::isnan", isnan);
  r.add("aten::isinf", isinf);
  r.add("aten::isposinf", is_signed_inf<true>);
  r.add("aten::isneginf", is_signed_inf<false>);
  r.add("aten::signbit", signbit);

  for (const char* name : {"aten::logical_and", "aten::logical_or", "aten::logical_xor"}) {
    r.all(name).meta = logical_meta;
  }
  for (const char* name : {"aten::logical_not", "aten::isnan", "aten::isinf"}) {
    r.all(name).meta = bools_like_first;
  }
  r.all("aten::where") = {
      .meta = where_meta, .narrow_floats = NarrowFloats::Rounded, .converts_all = true};
});

}  // namespace torch_xla::ops
