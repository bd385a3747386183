#include "dispatch/judge/converted_numbers.h"

#include <string_view>

#include <ATen/Dispatch_v2.h>

namespace torch_xla::dispatch {
namespace {

// In the place of a tensor: converted as elements are, by their low bits.
bool is_operand(std::string_view argument) {
  return argument == "self" || argument == "other" || argument == "scalar" || argument == "scalars";
}

}  // namespace

ConvertedNumbers::ConvertedNumbers(const OperatorPlan& plan) : traits_(*plan.target->traits) {
  const c10::FunctionSchema& schema = plan.target->schema();
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    const ArgumentPlan& argument = plan.arguments[i];
    const bool converted = argument.type == ArgumentType::Number && !argument.static_number &&
                           !argument.shape_number && !is_operand(schema.arguments()[i].name());
    if (converted || (traits_.converts_all && i != 0)) positions_.push_back(i);
  }
}

void ConvertedNumbers::check_one(const c10::IValue& number, const lazy::Geometry& of) const {
  if (number.isNone()) return;
  if (number.isInt() && number.toInt() >= 0 && number.toInt() <= 127) return;  // in every dtype
  c10::Scalar value;
  if (number.isTensor()) {
    const at::Tensor& t = number.toTensor();
    if (!t.is_cpu() || !t.unsafeGetTensorImpl()->is_wrapped_number()) return;
    value = t.item();
  } else {
    value = number.toScalar();
  }
  at::ScalarType result = of.dtype;
  const bool narrow = at::isReducedFloatingType(result);
  const bool rounds =
      traits_.narrow_floats == ops::NarrowFloats::Rounded || (traits_.rounds_one && of.numel == 1);
  if (narrow && rounds) return;
  if (narrow && traits_.narrow_floats == ops::NarrowFloats::AsFloat) result = at::kFloat;
  if (at::isFloat8Type(result)) return;
  AT_DISPATCH_V2(result, "number", AT_WRAP([&] { (void)value.to<scalar_t>(); }),
                 AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
                 at::kBool, at::kHalf, at::kBFloat16);
}

}  // namespace torch_xla::dispatch
