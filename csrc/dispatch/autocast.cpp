// Autocast on xla: which operators run in the narrow dtype, which in float32. The key AutocastXLA
// comes from PyTorch without a single kernel: here are PyTorch's lists for all devices and the
// policies of operators' traits.
#include "dispatch/autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "ops/registry.h"

namespace torch_xla::dispatch {
namespace {

// PyTorch's lists name these as its own namespace does.
#if __has_include(<ATen/core/Dimname.h>)
using at::DimnameList;  // in PyTorch's lists before 2.13
#endif
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;

#define TXLA_POLICY(policy, ...) KERNEL(at::kXLA, __VA_ARGS__, policy)
#define TXLA_NARROW(...) TXLA_POLICY(lower_precision_fp, __VA_ARGS__)
#define TXLA_FP32(...) TXLA_POLICY(fp32, __VA_ARGS__)
#define TXLA_FP32_OUTPUT(...) TXLA_POLICY(fp32_set_opt_dtype, __VA_ARGS__)
#define TXLA_PROMOTE(...) TXLA_POLICY(promote, __VA_ARGS__)
#define TXLA_APPEND_DTYPE(...) KERNEL_DIFFERENT_REDISPATCH_SIGNATURE(at::kXLA, __VA_ARGS__)

TORCH_LIBRARY_IMPL(_, AutocastXLA, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

// The ones that CUDA's policies are made of.
TORCH_LIBRARY_IMPL(aten, AutocastXLA, m) {
  AT_FORALL_LOWER_PRECISION_FP(TXLA_NARROW)
  AT_FORALL_FP32(TXLA_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TXLA_FP32_OUTPUT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(TXLA_APPEND_DTYPE)
  AT_FORALL_PROMOTE(TXLA_PROMOTE)
}

// Calls an operator on arguments that have been cast as its traits say.
class PolicyKernel final : public c10::OperatorKernel {
 public:
  explicit PolicyKernel(const ops::Traits& traits) : traits_(traits) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    TORCH_CHECK(traits_.refuses_float16 == nullptr || narrow() != at::kHalf,
                op.schema().name().substr(op.schema().name().find("::") + 2),
                ": expected autocast to bfloat16 or none, got float16, in which its gradient "
                "overflows. ",
                traits_.refuses_float16);
    const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastXLA);
    const size_t base = stack->size() - op.schema().arguments().size();
    const ScalarType dtype = dtype_for(*stack, base);
    for (size_t i = base; i < stack->size(); ++i) cast((*stack)[i], dtype);
    op.callBoxed(stack);
  }

 private:
  static ScalarType narrow() { return at::autocast::get_autocast_dtype(at::kXLA); }

  ScalarType dtype_for(const torch::jit::Stack& stack, size_t base) const {
    if (traits_.autocast == ops::Autocast::Narrow) return narrow();
    if (traits_.autocast == ops::Autocast::Float32) return at::kFloat;
    ScalarType widest = narrow();
    for (size_t i = base; i < stack.size(); ++i) {
      if (stack[i].isTensor()) {
        widest = at::autocast::prioritize(widest, stack[i].toTensor(), at::kXLA);
      } else if (stack[i].isTensorList()) {
        for (const Tensor& t : stack[i].toTensorVector()) {
          widest = at::autocast::prioritize(widest, t, at::kXLA);
        }
      }
    }
    return widest;
  }

  static void cast(c10::IValue& v, ScalarType dtype) {
    if (v.isTensor()) {
      v = at::autocast::cached_cast(dtype, v.toTensor(), at::kXLA);
    } else if (v.isTensorList()) {
      const std::vector<Tensor> tensors = v.toTensorVector();
      v = at::autocast::cached_cast(dtype, at::TensorList(tensors), at::kXLA);
    }
  }

  const ops::Traits& traits_;
};

// Forms that write to an argument compute in its dtype.
bool writes(const c10::FunctionSchema& schema) {
  for (const c10::Argument& a : schema.arguments()) {
    if (a.alias_info() != nullptr && a.alias_info()->isWrite()) return true;
  }
  return false;
}

}  // namespace

void register_autocast() {
  static auto& library = *new torch::Library(torch::Library::IMPL, "aten",
                                             c10::DispatchKey::AutocastXLA, __FILE__, __LINE__);
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  constexpr std::string_view kAten = "aten::";
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with(kAten)) continue;
    const ops::Traits& traits = ops::Registry::get().traits(name);
    if (traits.autocast == ops::Autocast::Unnamed) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || writes(op->schema())) continue;
    const std::string local = c10::toString(name).substr(kAten.size());
    library.impl(local.c_str(),
                 torch::CppFunction::makeFromBoxedFunctor(std::make_unique<PolicyKernel>(traits)));
  }
}

}  // namespace torch_xla::dispatch
