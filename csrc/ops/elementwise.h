// Patterns that most elementwise rules are made of.
#pragma once

#include "ops/common.h"

namespace torch_xla::ops {

using UnaryFormula = hlo::Value (*)(const hlo::Value&);
using BinaryFormula = hlo::Value (*)(const hlo::Value&, const hlo::Value&);

// A rule computes in the dtype of the result: integers go to PyTorch's default float where the
// result is one. A formula of several steps computes in f32 on narrow floats; a single operation
// needs no help.
enum class Steps { One, Many };

template <UnaryFormula formula, Steps steps = Steps::One>
hlo::Values unary_rule(Lowering& l) {
  const hlo::DType dtype = l.out().dtype;
  return result(l, formula(cast(l.in(0), steps == Steps::One ? dtype : compute_dtype(dtype))));
}

// Takes both operands in the compute type of the result, broadcast. A number or a 0-dim operand of
// a wider type is never rounded to a narrow float first; other operands may stay in the result's
// type.
template <BinaryFormula formula, Steps steps = Steps::Many>
hlo::Values binary_rule(Lowering& l) {
  const hlo::DType dtype = l.out().dtype;
  const auto stays = [&](size_t i) { return l.in(i).dtype() == dtype || l.in(i).rank() > 0; };
  const bool direct = steps == Steps::One && stays(0) && stays(1);
  const hlo::DType compute = direct ? dtype : compute_dtype(dtype);
  return result(l, formula(operand(l, 0, compute), operand(l, 1, compute)));
}

// Throws PyTorch's error for differences of truth values.
void refuse_bool_subtraction(bool self_is_bool, bool other_is_bool);
bool is_bool(const c10::IValue& v);

}  // namespace torch_xla::ops
