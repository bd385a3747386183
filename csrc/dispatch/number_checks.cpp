#include "dispatch/number_checks.h"

#include <set>
#include <string_view>
#include <unordered_map>

#include <ATen/Context.h>
#include <ATen/Dispatch_v2.h>
#include <ATen/EmptyTensor.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/random_cpu_dispatch.h>
#include <ATen/ops/uniform_cpu_dispatch.h>

namespace torch_xla::dispatch {
namespace {

using torch::jit::Stack;

double number(const Stack& stack, size_t position) { return stack[position].toScalar().toDouble(); }

// PyTorch's CPU kernels check the range before they see that there is nothing to fill.
at::Tensor nothing_of(at::ScalarType dtype) {
  return at::detail::empty_cpu({0}, at::TensorOptions(dtype));
}
at::Tensor nothing_like(const c10::IValue& self) {
  return nothing_of(self.toTensor().scalar_type());
}

void uniform(const Stack& stack, size_t base) {
  at::Tensor none = nothing_like(stack[base]);
  at::cpu::uniform_(none, number(stack, base + 1), number(stack, base + 2));
}

// (self, to, ..)
void random_to(const Stack& stack, size_t base) {
  at::Tensor none = nothing_like(stack[base]);
  at::cpu::random_(none, stack[base + 1].toInt());
}

// (self, from, to, ..)
void random_from(const Stack& stack, size_t base) {
  at::Tensor none = nothing_like(stack[base]);
  at::cpu::random_(none, stack[base + 1].toInt(), stack[base + 2].toOptional<int64_t>());
}

// ([self,] [low,] high, .., dtype, ..)
template <bool HasLow, size_t High, size_t Dtype>
void randint(const Stack& stack, size_t base) {
  const c10::IValue& given = stack[base + Dtype];
  const c10::IValue& like = stack[base];
  at::ScalarType dtype = at::kLong;
  if (!given.isNone()) {
    dtype = given.toScalarType();
  } else if (like.isTensor()) {
    dtype = like.toTensor().scalar_type();
  }
  at::Tensor none = nothing_of(dtype);
  at::cpu::random_(none, HasLow ? stack[base + High - 1].toInt() : 0, stack[base + High].toInt());
}

void cauchy(const Stack& stack, size_t base) {
  const double sigma = number(stack, base + 2);
  TORCH_CHECK(sigma > 0.0, "cauchy_ expects sigma > 0.0, but found sigma=", sigma);
}

void exponential(const Stack& stack, size_t base) {
  const double lambda = number(stack, base + 1);
  TORCH_CHECK(lambda > 0.0, "exponential_ expects lambda > 0.0, but found lambda=", lambda);
}

void geometric(const Stack& stack, size_t base) {
  const double p = number(stack, base + 1);
  TORCH_CHECK(0 < p && p < 1, "geometric_ expects p to be in (0, 1), but got p=", p);
}

void log_normal(const Stack& stack, size_t base) {
  const double std = number(stack, base + 2);
  TORCH_CHECK(std > 0.0, "log_normal_ expects std > 0.0, but found std=", std);
}

void check_deviation(double std) {
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
}
// (self, mean, std)
void normal(const Stack& stack, size_t base) { check_deviation(number(stack, base + 2)); }
// (mean, std, ..)
void normal_of_number(const Stack& stack, size_t base) { check_deviation(number(stack, base + 1)); }

void bernoulli(const Stack& stack, size_t base) {
  const double p = number(stack, base + 1);
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
}

void subtraction(bool self_is_bool, bool other_is_bool) {
  TORCH_CHECK(!self_is_bool || !other_is_bool,
              "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` "
              "or `logical_xor()` operator instead.");
  TORCH_CHECK(!self_is_bool && !other_is_bool,
              "Subtraction, the `-` operator, with a bool tensor is not supported. If you are "
              "trying to invert a mask, use the `~` or `logical_not()` operator instead.");
}

bool is_bool(const c10::IValue& v) {
  return v.isTensor() ? v.toTensor().scalar_type() == at::kBool : v.isBool();
}

// (self, scalar), (self, scalars) and (self, other); PyTorch's Meta kernels of lists refuse no
// truth values.
void list_subtraction(const Stack& stack, size_t base) {
  const c10::IValue& given = stack[base + 1];
  const c10::ArrayRef<c10::IValue> self = stack[base].toListRef();
  // A list of another length is refused for that.
  if (given.isList() && given.toListRef().size() != self.size()) return;
  for (size_t i = 0; i < self.size(); ++i) {
    subtraction(is_bool(self[i]), is_bool(given.isList() ? given.toListRef()[i] : given));
  }
}

// (self, tensor1, tensor2, value or values)
void list_factors(const Stack& stack, size_t base) {
  const c10::IValue& given = stack[base + 3];
  const c10::ArrayRef<c10::IValue> self = stack[base].toListRef();
  if (given.isTensor() || (given.isList() && given.toListRef().size() != self.size())) return;
  for (size_t i = 0; i < self.size(); ++i) {
    const c10::IValue& factor = given.isList() ? given.toListRef()[i] : given;
    const at::ScalarType dtype = self[i].toTensor().scalar_type();
    if (!factor.isComplexDouble() || c10::isComplexType(dtype)) continue;
    AT_DISPATCH_V2(dtype, "value",
                   AT_WRAP([&] { (void)factor.toScalar().to<at::opmath_type<scalar_t>>(); }),
                   AT_EXPAND(AT_ALL_TYPES), at::kBool, at::kHalf, at::kBFloat16);
  }
}

// (self, other, ..)
void reversed_subtraction(const Stack& stack, size_t base) {
  subtraction(is_bool(stack[base]), is_bool(stack[base + 1]));
}

// (self, target, ..): the target is subtracted from a one of its dtype.
void target_of_bits(const Stack& stack, size_t base) {
  const bool bits = is_bool(stack[base + 1]);
  subtraction(bits, bits);
}

// (self, dim, correction, ..): PyTorch warns, and the result is nan or infinite.
void degrees_of_freedom(const char* name, const Stack& stack, size_t base) {
  const at::Tensor self = stack[base].toTensor();
  const c10::IValue &dim = stack[base + 1], &correction = stack[base + 2];
  const std::vector<int64_t> dims = dim.isNone() ? std::vector<int64_t>() : dim.toIntVector();
  int64_t n = dims.empty() ? self.numel() : 1;
  for (const int64_t d : dims) n *= self.dim() == 0 ? 1 : self.size(d);
  if (static_cast<double>(n) > (correction.isNone() ? 1.0 : correction.toScalar().toDouble()))
    return;
  TORCH_WARN(name,
             "(): degrees of freedom is <= 0. Correction should be strictly less than the "
             "reduction factor (input numel divided by output numel).");
}
void of_var(const Stack& stack, size_t base) { degrees_of_freedom("var", stack, base); }
void of_std(const Stack& stack, size_t base) { degrees_of_freedom("std", stack, base); }
void of_var_mean(const Stack& stack, size_t base) { degrees_of_freedom("var_mean", stack, base); }
void of_std_mean(const Stack& stack, size_t base) { degrees_of_freedom("std_mean", stack, base); }

// (self, dim, index, value)
void index_fill(const Stack& stack, size_t base) {
  TORCH_CHECK(!stack[base + 3].isComplexDouble() || stack[base].toTensor().is_complex(),
              "index_fill_(): Converting complex Scalar to non-complex type is not supported");
}

// (self, index, source, accumulate); whether programs must be deterministic may change, too.
void put(const Stack& stack, size_t base) {
  if (!stack[base + 3].toBool()) at::globalContext().alertNotDeterministic("put_");
}

NumberCheck randint_check(const c10::OperatorName& op) {
  static const std::unordered_map<std::string_view, NumberCheck> kChecks = {
      {"aten::randint", randint<false, 0, 2>},
      {"aten::randint.generator", randint<false, 0, 3>},
      {"aten::randint.low", randint<true, 1, 3>},
      {"aten::randint.low_generator", randint<true, 1, 4>},
      {"aten::randint_like", randint<false, 1, 2>},
      {"aten::randint_like.generator", randint<false, 1, 3>},
      {"aten::randint_like.low_dtype", randint<true, 2, 3>},
      {"aten::randint_like.low_generator_dtype", randint<true, 2, 4>},
  };
  const auto it = kChecks.find(full_name(op));
  return it == kChecks.end() ? nullptr : it->second;
}

}  // namespace

NumberCheck number_check(const c10::OperatorHandle& op) {
  static const std::unordered_map<std::string_view, NumberCheck> kChecks = {
      {"aten::uniform", uniform},
      {"aten::uniform_", uniform},
      {"aten::cauchy", cauchy},
      {"aten::cauchy_", cauchy},
      {"aten::exponential", exponential},
      {"aten::exponential_", exponential},
      {"aten::geometric", geometric},
      {"aten::geometric_", geometric},
      {"aten::log_normal", log_normal},
      {"aten::log_normal_", log_normal},
      {"aten::index_fill", index_fill},
      {"aten::index_fill_", index_fill},
      {"aten::put", put},
      {"aten::put_", put},
      {"aten::normal_functional", normal},
      {"aten::normal_", normal},
      {"aten::rsub", reversed_subtraction},
      {"aten::binary_cross_entropy_with_logits", target_of_bits},
      {"aten::std", of_std},
      {"aten::std_mean", of_std_mean},
      {"aten::var", of_var},
      {"aten::var_mean", of_var_mean},
  };
  const std::string& name = op.schema().name();
  if (name.starts_with("aten::randint")) return randint_check(op.operator_name());
  const bool probability = op.schema().overload_name() == "p" ||
                           (name == "aten::bernoulli_" && op.schema().overload_name() == "float");
  if (name.starts_with("aten::bernoulli")) return probability ? bernoulli : nullptr;
  if (name == "aten::random" || name == "aten::random_") {
    const std::string& overload = op.schema().overload_name();
    return overload == "to" ? random_to : overload == "from" ? random_from : nullptr;
  }
  if (name.starts_with("aten::_foreach_sub")) return list_subtraction;
  if (name.starts_with("aten::_foreach_addc")) return list_factors;
  if (name == "aten::normal" && op.schema().overload_name().ends_with("_float")) {
    return normal_of_number;
  }
  const auto it = kChecks.find(name);
  return it == kChecks.end() ? nullptr : it->second;
}

ConvertedNumbers::ConvertedNumbers(const Plan& plan) {
  // Numbers that become a tensor of one element, whose kernel rounds doubles to narrow floats.
  static const std::set<std::string_view> kRounded = {"aten::scalar_tensor", "aten::where"};
  // Others compute narrow floats in float32, and convert their numbers to that.
  static const std::set<std::string_view> kExact = {
      "aten::fill",       "aten::full",      "aten::full_like", "aten::new_full",
      "aten::index_fill", "aten::scatter",   "aten::index_add", "aten::masked_fill",
      "aten::clamp",      "aten::clamp_min", "aten::clamp_max", "aten::constant_pad_nd",
      "aten::hardtanh",   "aten::add",       "aten::sub",       "aten::rsub"};
  // Where they fill one element, they round to narrow floats too.
  static const std::set<std::string_view> kFills = {"aten::fill", "aten::full", "aten::full_like",
                                                    "aten::new_full"};
  // In the place of a tensor: converted as elements are, by their low bits.
  static const std::set<std::string_view> kOperands = {"self", "other", "scalar", "scalars"};
  const c10::FunctionSchema& schema = plan.target->schema();
  if (kRounded.count(schema.name()) != 0) narrow_floats_ = NarrowFloats::Unchecked;
  if (kExact.count(schema.name()) != 0) narrow_floats_ = NarrowFloats::Exact;
  fills_ = kFills.count(schema.name()) != 0;
  const bool is_where = schema.name() == "aten::where";
  for (size_t i = 0; i < plan.arguments.size(); ++i) {
    const ArgumentPlan& argument = plan.arguments[i];
    const bool converted = argument.type == ArgumentType::Number && !argument.static_number &&
                           !argument.shape_number &&
                           kOperands.count(schema.arguments()[i].name()) == 0;
    if (converted || (is_where && i != 0)) positions_.push_back(i);
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
  const bool rounds = narrow_floats_ == NarrowFloats::Unchecked || (fills_ && of.numel == 1);
  if (narrow && rounds) return;
  if (narrow && narrow_floats_ == NarrowFloats::AsFloat) result = at::kFloat;
  if (at::isFloat8Type(result)) return;
  AT_DISPATCH_V2(result, "number", AT_WRAP([&] { (void)value.to<scalar_t>(); }),
                 AT_EXPAND(AT_ALL_TYPES_AND_COMPLEX), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES),
                 at::kBool, at::kHalf, at::kBFloat16);
}

}  // namespace torch_xla::dispatch
