#include "dispatch/composites/factory.h"

#include <cmath>

#include <ATen/MemoryOverlap.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/i0.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/DefaultDtype.h>

#include "dispatch/views/resize.h"
#include "ops/registry.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using c10::Argument;

// The factory's last arguments: dtype, layout, device, pin_memory.
constexpr size_t kOptions = 4;

bool is_factory_of(const c10::FunctionSchema& factory, const c10::FunctionSchema& out) {
  const auto& given = out.arguments();
  const auto& wanted = factory.arguments();
  const size_t inputs = given.size() - 1;
  if (factory.name() != out.name() || wanted.size() != inputs + kOptions) return false;
  if (wanted[inputs].name() != "dtype" || wanted.back().name() != "pin_memory") return false;
  for (size_t i = 0; i < inputs; ++i) {
    if (wanted[i].name() != given[i].name() || *wanted[i].type() != *given[i].type()) return false;
  }
  return true;
}

// Factories resize an output of other sizes without a word, but for arange; ranges fill any shape
// of as many elements.
void take_shape(const c10::OperatorName& op, const at::Tensor& out, const lazy::Geometry& made) {
  const ops::Traits& traits = ops::Registry::get().traits(op);
  at::assert_no_internal_overlap(out);
  if (traits.fills_any_shape && out.numel() == made.numel) return;
  if (traits.warns_of_size && out.numel() > 0) {
    TORCH_WARN("The number of elements in the out tensor of shape ", out.sizes(), " is ",
               out.numel(), " which does not match the computed number of elements ", made.numel,
               ". Note that this may occur as a result of rounding error. The out tensor will be "
               "resized to a tensor of shape (",
               made.numel, ",).");
  }
  lazy::TensorImpl* impl = lazy::as_lazy(out);
  TXLA_CHECK(impl != nullptr, op.name, ": expected an xla output, got one on ", out.device().str(),
             ". Create it with device='xla'.");
  if (out.sizes() != at::IntArrayRef(made.sizes)) resize(*impl, &made);
}

// The window of Kaiser: I0(beta * sqrt(1 - x^2)) / I0(beta) for x from -1 to 1.
at::Tensor kaiser_window(int64_t window_length, bool periodic, double beta,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  const at::ScalarType result = dtype.value_or(c10::get_default_dtype_as_scalartype());
  TORCH_CHECK(!layout || *layout == at::kStrided,
              "kaiser_window is not implemented for sparse types, got: ", *layout);
  TORCH_CHECK(at::isFloatingType(result) || at::isComplexType(result),
              "kaiser_window expects floating point dtypes, got: ", result);
  TORCH_CHECK(window_length >= 0,
              "kaiser_window requires non-negative window_length, got "
              "window_length=",
              window_length);
  const auto options = at::TensorOptions().dtype(result).device(device).pinned_memory(pin_memory);
  if (window_length == 0) return at::empty({0}, options);
  if (window_length == 1) return at::ones({1}, options);
  const int64_t steps = periodic ? window_length : window_length - 1;
  const double half = static_cast<double>(steps) / 2;
  const at::Tensor x = (at::arange(window_length, options.dtype(at::kDouble)) - half) / half;
  const double top = at::i0(at::scalar_tensor(beta, at::kDouble)).item<double>();
  return (at::i0(beta * (1 - x * x).clamp_min(0).sqrt()) / top).to(result);
}

constexpr double kDefaultBeta = 12;

at::Tensor kaiser_window_of_default_shape(int64_t window_length, bool periodic,
                                          std::optional<at::ScalarType> dtype,
                                          std::optional<at::Layout> layout,
                                          std::optional<at::Device> device,
                                          std::optional<bool> pin_memory) {
  return kaiser_window(window_length, periodic, kDefaultBeta, dtype, layout, device, pin_memory);
}

at::Tensor default_kaiser_window(int64_t window_length, std::optional<at::ScalarType> dtype,
                                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                                 std::optional<bool> pin_memory) {
  return kaiser_window(window_length, /*periodic=*/true, kDefaultBeta, dtype, layout, device,
                       pin_memory);
}

}  // namespace

std::unique_ptr<FactoryOutKernel> FactoryOutKernel::make(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  if (arguments.empty() || !arguments.back().is_out()) return nullptr;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) return nullptr;
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  // The overloads of a factory and of its out= form carry names of their own.
  static const auto& names = *new std::vector<c10::OperatorName>(dispatcher.getAllOpNames());
  for (const c10::OperatorName& name : names) {
    if (name.name != op.operator_name().name) continue;
    const auto factory = dispatcher.findSchema(name);
    if (factory && is_factory_of(factory->schema(), op.schema())) {
      return std::unique_ptr<FactoryOutKernel>(new FactoryOutKernel(*factory));
    }
  }
  return nullptr;
}

void FactoryOutKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet,
                                  torch::jit::Stack* stack) {
  at::Tensor out = stack->back().toTensor();
  stack->pop_back();
  stack->emplace_back(static_cast<int64_t>(out.scalar_type()));
  stack->emplace_back();
  stack->emplace_back(out.device());
  stack->emplace_back();
  factory_.callBoxed(*stack);
  const at::Tensor made = stack->back().toTensor();
  {
    const lazy::GraphLock lock;
    lazy::TensorImpl* result = lazy::as_lazy(made);
    TXLA_CHECK(result != nullptr, op.schema().name(), ": expected an xla tensor.");
    take_shape(op.operator_name(), out, *result->geometry());
  }
  out.copy_(made.sizes() == out.sizes() ? made : made.view(out.sizes()));
  stack->back() = out;
}

void register_factories(torch::Library& library) {
  library.impl("kaiser_window", TORCH_FN(default_kaiser_window));
  library.impl("kaiser_window.periodic", TORCH_FN(kaiser_window_of_default_shape));
  library.impl("kaiser_window.beta", TORCH_FN(kaiser_window));
}

}  // namespace torch_xla::dispatch
