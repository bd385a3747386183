#include "dispatch/calls/meta.h"

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "ops/lowering.h"
#include "util/lock_order.h"

namespace torch_xla::dispatch {
namespace {

// Access to two private members by explicit instantiation, which the language permits: the
// dispatcher keeps the shadowed kernels and has no public way to reach them.
template <class Tag, auto Member>
struct Grant {
  friend auto member(Tag) { return Member; }
};

struct OperatorDefTag {
  friend auto member(OperatorDefTag);
};
template struct Grant<OperatorDefTag, &c10::OperatorHandle::operatorDef_>;

struct KernelsTag {
  friend auto member(KernelsTag);
};
template struct Grant<KernelsTag, &c10::impl::OperatorEntry::kernels_>;

// The kernel that PyTorch's build registered for a key, which Python's may cover.
const c10::KernelFunction* built_in_kernel(const c10::OperatorHandle& op, c10::DispatchKey key,
                                           std::string_view registered_by) {
  const auto& kernels = (op.*member(OperatorDefTag{}))->op.*member(KernelsTag{});
  const auto it = kernels.find(key);
  if (it == kernels.end()) return nullptr;
  for (const auto& annotated : it->second) {
    // A kernel that cannot be called boxed is of no use here.
    if (annotated.debug.find(registered_by) != std::string::npos && annotated.kernel.isValid()) {
      return &annotated.kernel;
    }
  }
  return nullptr;
}

// PyTorch's C++ code that computes shapes: the Meta kernel; else the code of all devices.
const c10::KernelFunction* cpp_meta_kernel(const c10::OperatorHandle& op) {
  using c10::DispatchKey;
  const auto* meta = built_in_kernel(op, DispatchKey::Meta, "RegisterMeta");
  if (meta != nullptr) return meta;
  for (const DispatchKey any_device :
       {DispatchKey::CompositeExplicitAutogradNonFunctional, DispatchKey::CompositeExplicitAutograd,
        DispatchKey::CompositeImplicitAutograd}) {
    const auto* code = built_in_kernel(op, any_device, "RegisterComposite");
    if (code != nullptr) return code;
  }
  return nullptr;
}

// Set for this thread while a Meta kernel runs. PyTorch keeps the key for modes of its tests, and
// gives it no kernel.
constexpr auto kWithinMeta = c10::DispatchKey::TESTING_ONLY_GenericMode;

// (self, ..) of an operator in place
void written_once(const ops::Arguments& a) {
  if (a[0].isTensor()) at::assert_no_internal_overlap(a.tensor(0));
}

bool is_in_place(const c10::FunctionSchema& schema) {
  if (schema.arguments().empty()) return false;
  const c10::Argument& self = schema.arguments()[0];
  return self.alias_info() != nullptr && self.alias_info()->isWrite() && !self.is_out();
}

// The traits of the operator whose form in place this one is.
const ops::Traits& functional_traits(const c10::OperatorHandle& op) {
  c10::OperatorName name = op.operator_name();
  if (name.name.ends_with('_')) name.name.pop_back();
  return ops::Registry::get().traits(name);
}

}  // namespace

c10::DispatchKeySet below_autograd() {
  return c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
         c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::Functionalize});
}

MetaKernel::MetaKernel(const c10::OperatorHandle& op, Caller caller) : op_(op) {
  if (is_in_place(op.schema())) {
    const ops::Traits& traits = functional_traits(op);
    native_ = cpp_meta_kernel(op);
    meta_ = traits.meta_in_place;
    if (caller == Caller::User && !traits.writes_repeated) check_ = written_once;
    return;
  }
  const ops::Traits& traits = ops::Registry::get().traits(op.operator_name());
  if (!traits.python_meta) native_ = cpp_meta_kernel(op);
  meta_ = traits.meta;
  check_ = traits.checks_call;
  layout_ = traits.layout;
}

void MetaKernel::call(torch::jit::Stack* stack) const {
  const size_t base = stack->size() - op_.schema().arguments().size();
  if (layout_ == nullptr) return shapes(stack, base);
  const at::MemoryFormat format = layout_(ops::Arguments(*stack, base));
  shapes(stack, base);
  if (format == at::MemoryFormat::Preserve) return;
  const at::Tensor result = (*stack)[base].toTensor();
  const bool one_row = result.dim() == 3 && format == at::MemoryFormat::ChannelsLast;
  const at::Tensor sized = one_row ? result.unsqueeze(2) : result;
  const at::Tensor laid_out = at::empty(sized.sizes(), sized.options(), format);
  (*stack)[base] = one_row ? laid_out.squeeze(2) : laid_out;
}

void MetaKernel::shapes(torch::jit::Stack* stack, size_t base) const {
  // A mode of PyTorch's that is at work (TorchDispatchMode) has excluded that key.
  const auto outside = c10::impl::tls_local_dispatch_key_set();
  const c10::impl::ForceDispatchKeyGuard within(
      outside.included_.add(kWithinMeta),
      (outside.excluded_ | below_autograd()).remove(kWithinMeta));
  if (check_ != nullptr) check_(ops::Arguments(*stack, base));
  if (meta_ == nullptr) return pytorch(stack);
  const auto run = [&] { pytorch(stack); };
  ops::MetaCall call(*stack, base, run);
  meta_(call);
}

void MetaKernel::pytorch(torch::jit::Stack* stack) const {
  if (native_ != nullptr) {
    native_->callBoxed(op_, c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    return;
  }
  try {
    op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
  } catch (const std::exception& e) {
    // Python's Meta functions assert where PyTorch's kernels raise RuntimeError.
    constexpr std::string_view kAssertion = "AssertionError: ";
    const std::string_view what = e.what();
    const std::string_view line = what.substr(0, what.find('\n'));
    TORCH_CHECK(!line.starts_with(kAssertion), line.substr(kAssertion.size()));
    throw;
  }
}

namespace {

bool is_of_meta(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                const torch::jit::Stack& stack) {
  if (keys.highestPriorityTypeId() == c10::DispatchKey::Meta) return true;
  if (keys.highestPriorityTypeId() != c10::DispatchKey::BackendSelect) return false;
  const auto& arguments = op.schema().arguments();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].name() != "device") continue;
    const c10::IValue& device = stack[stack.size() - arguments.size() + i];
    return device.isDevice() && device.toDevice().is_meta();
  }
  return false;
}

const MetaKernel& meta_kernel_of(const c10::OperatorHandle& op) {
  static util::Mutex mutex;
  static auto& known = *new std::unordered_map<c10::OperatorHandle, std::unique_ptr<MetaKernel>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<MetaKernel>& kernel = known[op];
  if (kernel == nullptr) kernel = std::make_unique<MetaKernel>(op, MetaKernel::Caller::Meta);
  return *kernel;
}

// Makes what a Meta kernel calls find its shapes as recorded calls do. PyTorch's dispatcher would
// run Python's functions, of which the first imports torch._dynamo and sympy.
void call_within_meta(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                      torch::jit::Stack* stack) {
  const auto below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kWithinMeta);
  if (is_of_meta(op, below, *stack)) return meta_kernel_of(op).call(stack);
  op.redispatchBoxed(below, stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&call_within_meta>());
}

}  // namespace

}  // namespace torch_xla::dispatch
