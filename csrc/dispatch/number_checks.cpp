#include "dispatch/number_checks.h"

#include <string_view>
#include <unordered_map>

namespace torch_xla::dispatch {
namespace {

using torch::jit::Stack;

double number(const Stack& stack, size_t position) { return stack[position].toScalar().toDouble(); }

void uniform(const Stack& stack, size_t base) {
  const double from = number(stack, base + 1), to = number(stack, base + 2);
  TORCH_CHECK(from <= to, "uniform_ expects to return a [from, to) range, but found from=", from,
              " > to=", to);
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

// (self, mean, std)
void normal(const Stack& stack, size_t base) {
  const double std = number(stack, base + 2);
  TORCH_CHECK(std >= 0.0, "normal expects std >= 0.0, but found std ", std);
}

void bernoulli(const Stack& stack, size_t base) {
  const double p = number(stack, base + 1);
  TORCH_CHECK(0 <= p && p <= 1, "bernoulli_ expects p to be in [0, 1], but got p=", p);
}

// (self, scalar) and (self, scalars); PyTorch's Meta kernels of lists refuse no truth values.
void list_subtraction(const Stack& stack, size_t base) {
  const c10::IValue& given = stack[base + 1];
  const auto check = [](const c10::IValue& number) {
    TORCH_CHECK(!number.isBool(),
                "Subtraction, the `-` operator, with a bool tensor is not supported. If you are "
                "trying to invert a mask, use the `~` or `logical_not()` operator instead.");
  };
  if (!given.isList()) return check(given);
  for (const c10::IValue& number : given.toListRef()) check(number);
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
      {"aten::normal_functional", normal},
      {"aten::normal_", normal},
  };
  const std::string& name = op.schema().name();
  const bool probability = op.schema().overload_name() == "p" ||
                           (name == "aten::bernoulli_" && op.schema().overload_name() == "float");
  if (name.starts_with("aten::bernoulli")) return probability ? bernoulli : nullptr;
  if (name.starts_with("aten::_foreach_sub")) {
    return op.schema().overload_name().starts_with("Scalar") ? list_subtraction : nullptr;
  }
  const auto it = kChecks.find(name);
  return it == kChecks.end() ? nullptr : it->second;
}

}  // namespace torch_xla::dispatch
