#include "dispatch/meta.h"

#include <string>
#include <string_view>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

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

const c10::KernelFunction* shadowed_meta_kernel(const c10::OperatorHandle& op) {
  // The C++ kernel of this one answers with shape [0], which its CPU kernel corrects.
  if (op.schema().name() == "aten::isin" && op.schema().overload_name() == "Scalar_Tensor") {
    return nullptr;
  }
  const auto& kernels = (op.*member(OperatorDefTag{}))->op.*member(KernelsTag{});
  const auto it = kernels.find(c10::DispatchKey::Meta);
  if (it == kernels.end()) return nullptr;
  for (const auto& annotated : it->second) {
    // A kernel that cannot be called boxed is of no use here.
    if (annotated.debug.find("RegisterMeta") != std::string::npos && annotated.kernel.isValid()) {
      return &annotated.kernel;
    }
  }
  return nullptr;
}

// PyTorch's Python shape functions of these divide by the number of elements, which may be 0. The
// shape is that of the unreduced loss's gradient.
constexpr size_t kReduction = 3;
bool divides_by_elements(const std::string& op) {
  return op == "aten::mse_loss_backward" || op == "aten::smooth_l1_loss_backward" ||
         op == "aten::huber_loss_backward";
}

// Theirs answer with one element where the CPU kernels answer with a 0-dim tensor.
bool keeps_batch_of_one(const std::string& op) {
  return op == "aten::multi_margin_loss" || op == "aten::multilabel_margin_loss_forward";
}

// Its CPU kernel keeps the memory format of one sample, too: such a sample becomes a batch of one.
bool becomes_batch(const std::string& op, torch::jit::Stack& stack, size_t base) {
  constexpr auto kLast = at::MemoryFormat::ChannelsLast3d;
  if (op != "aten::max_pool3d_with_indices" || stack[base].toTensor().dim() != 4) return false;
  const at::Tensor batch = stack[base].toTensor().unsqueeze(0);
  if (!batch.is_contiguous(kLast)) return false;
  stack[base] = batch.contiguous().contiguous(kLast);  // with the strides of such a batch
  return true;
}

// The C++ kernels of these look at the first slice of self and source, which an empty one lacks.
bool looks_at_slices(const std::string& op) {
  return op.starts_with("aten::index_add") || op.starts_with("aten::index_reduce");
}

// (self, dim, index, source, ...) with nothing to write, or nowhere to write it.
bool write_of_nothing(const std::string& op, torch::jit::Stack& stack, size_t base) {
  const at::Tensor self = stack[base].toTensor();
  const at::Tensor index = stack[base + 2].toTensor(), source = stack[base + 3].toTensor();
  if (self.dim() == 0 || (self.numel() != 0 && source.numel() != 0)) return false;
  const int64_t dim = stack[base + 1].toInt();
  TORCH_CHECK_INDEX(source.dim() == self.dim() && index.numel() == source.size(dim), op,
                    ": expected as many indices as slices of source, got index of size ",
                    index.sizes(), " and source of size ", source.sizes(), ".");
  torch::jit::drop(stack, stack.size() - base);
  stack.emplace_back(
      meta_tensor(*lazy::intern_contiguous(self.scalar_type(), self.sizes()), false));
  return true;
}

// (weight, indices, offsets, ..): integers of two dtypes become int64, as in the CPU kernels.
void promote_bags(const std::string& op, torch::jit::Stack& stack, size_t base) {
  if (op != "aten::_embedding_bag" && op != "aten::_embedding_bag_forward_only") return;
  c10::IValue &indices = stack[base + 1], &offsets = stack[base + 2];
  if (indices.toTensor().scalar_type() == offsets.toTensor().scalar_type()) return;
  indices = indices.toTensor().to(at::kLong);
  offsets = offsets.toTensor().to(at::kLong);
}

// (self, mask, value): Python's function takes no complex number for a real tensor. The CPU's
// kernel takes those without an imaginary part, and so does the check of numbers here.
void fill_with_any_number(const std::string& op, torch::jit::Stack& stack, size_t base) {
  if (op != "aten::masked_fill") return;
  c10::IValue& value = stack[base + 2];
  if (value.isComplexDouble() && !stack[base].toTensor().is_complex()) value = int64_t{0};
}

// Python's Meta functions of these take Meta tensors for CUDA's, whose kernels of them are not
// deterministic.
bool warns_of_cuda(const std::string& op) { return op == "aten::histc" || op == "aten::median"; }

// Whatever PyTorch's switch says, operators need not be deterministic here.
class AnyOrder {
 public:
  explicit AnyOrder(bool wanted)
      : was_(at::globalContext().deterministicAlgorithms()), changes_(wanted && was_) {
    if (changes_) set(false);
  }
  ~AnyOrder() {
    if (changes_) set(was_);
  }
  AnyOrder(const AnyOrder&) = delete;
  AnyOrder& operator=(const AnyOrder&) = delete;

 private:
  static void set(bool deterministic) {
    at::Context& context = at::globalContext();
    context.setDeterministicAlgorithms(deterministic, context.deterministicAlgorithmsWarnOnly());
  }
  const bool was_, changes_;
};

}  // namespace

c10::DispatchKeySet below_autograd() {
  return c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
         c10::DispatchKeySet({c10::DispatchKey::ADInplaceOrView, c10::DispatchKey::Functionalize});
}

at::Tensor meta_tensor(const lazy::Geometry& geometry, bool wrapped_number) {
  at::Tensor t = at::detail::empty_strided_meta(geometry.sizes, geometry.strides, geometry.dtype);
  if (wrapped_number) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

MetaKernel::MetaKernel(const c10::OperatorHandle& op)
    : op_(op),
      native_(shadowed_meta_kernel(op)),
      missing_(missing_meta(op)),
      check_(meta_check(op)),
      layout_(meta_layout(op)) {}

void MetaKernel::call(torch::jit::Stack* stack) const {
  const size_t base = stack->size() - op_.schema().arguments().size();
  if (layout_ == nullptr) return shapes(stack, base);
  const at::MemoryFormat format = layout_(*stack, base);
  shapes(stack, base);
  if (format == at::MemoryFormat::Preserve) return;
  const at::Tensor result = (*stack)[base].toTensor();
  const bool one_row = result.dim() == 3 && format == at::MemoryFormat::ChannelsLast;
  const at::Tensor sized = one_row ? result.unsqueeze(2) : result;
  const at::Tensor laid_out = at::empty(sized.sizes(), sized.options(), format);
  (*stack)[base] = one_row ? laid_out.squeeze(2) : laid_out;
}

void MetaKernel::shapes(torch::jit::Stack* stack, size_t base) const {
  const c10::impl::ExcludeDispatchKeyGuard exclude(below_autograd());
  const std::string& name = op_.schema().name();
  if (missing_ != nullptr) {
    missing_(*stack, base);
    return;
  }
  if (check_ != nullptr) check_(*stack, base);
  if (looks_at_slices(name) && write_of_nothing(name, *stack, base)) return;
  if (native_ != nullptr) {
    native_->callBoxed(op_, c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
    return;
  }
  if (divides_by_elements(name)) (*stack)[base + kReduction] = int64_t{at::Reduction::None};
  const bool one_sample = keeps_batch_of_one(name) && (*stack)[base].toTensor().dim() < 2;
  promote_bags(name, *stack, base);
  fill_with_any_number(name, *stack, base);
  const bool one_volume = becomes_batch(name, *stack, base);
  const AnyOrder any_order(warns_of_cuda(name));
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
  if (one_sample) (*stack)[base] = (*stack)[base].toTensor().reshape({});
  if (!one_volume) return;
  for (const size_t k : {base, base + 1}) (*stack)[k] = (*stack)[k].toTensor().squeeze(0);
}

}  // namespace torch_xla::dispatch
