#include "dispatch/record/mask_index.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/nonzero.h>

#include "ops/meta.h"

namespace torch_xla::dispatch {

namespace {

using ops::is_mask;

// PyTorch's words. Positions of true elements would be read without a check where they are pending.
void check_masks(const at::Tensor& self, c10::ArrayRef<c10::IValue> indices) {
  int64_t dim = 0;
  for (const c10::IValue& e : indices) {
    const bool given = e.isTensor() && e.toTensor().defined();
    if (!given || !is_mask(e.toTensor())) {
      ++dim;
      continue;
    }
    const at::Tensor& mask = e.toTensor();
    if (mask.scalar_type() == at::kByte) {
      TORCH_WARN(
          "indexing with dtype torch.uint8 is now deprecated, please use a dtype torch.bool "
          "instead.");
    }
    for (int64_t i = 0; i < mask.dim(); ++i, ++dim) {
      TORCH_CHECK_INDEX(mask.size(i) == self.size(dim), "The shape of the mask ", mask.sizes(),
                        " at index ", i, " does not match the shape of the indexed tensor ",
                        self.sizes(), " at index ", dim);
    }
  }
}

// A complex number without an imaginary part fills real tensors, any other is refused: only its
// value tells.
at::Tensor as_real(const at::Tensor& number, const at::Tensor& self) {
  const auto options = at::device(at::kCPU).dtype(self.scalar_type());
  return at::empty(number.sizes(), options).fill_(number.item()).to(self.device());
}

// Bytes as truth values; the kernels behind would warn of them again.
at::Tensor truth(const at::Tensor& mask) {
  return mask.scalar_type() == at::kByte ? mask.to(at::kBool) : mask;
}

}  // namespace

void MaskIndexKernel::operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                                 torch::jit::Stack* stack) {
  const size_t base = stack->size() - op.schema().arguments().size();
  const c10::IValue& indices = (*stack)[base + 1];
  bool has_mask = false;
  int given = 0;
  for (const c10::IValue& e : indices.toListRef()) {
    if (!e.isTensor() || !e.toTensor().defined()) continue;
    ++given;
    if (is_mask(e.toTensor())) has_mask = true;
  }
  const at::Tensor& self = (*stack)[base].toTensor();
  if (has_mask && lazy::is_lazy(self)) check_masks(self, indices.toListRef());
  const bool is_put = op.schema().name().find("index_put") != std::string::npos;
  const bool stays = is_put && given == 1;
  // One value is filled in, for which PyTorch refuses masks of bytes.
  const bool fills =
      stays && (*stack)[base + 2].toTensor().numel() == 1 && !(*stack)[base + 3].toBool();
  if (has_mask && fills && !self.is_complex() && (*stack)[base + 2].toTensor().is_complex()) {
    (*stack)[base + 2] = as_real((*stack)[base + 2].toTensor(), self);
  }
  if (has_mask && !fills) {
    c10::List<std::optional<at::Tensor>> expanded;
    for (const c10::IValue& e : indices.toListRef()) {
      if (!e.isTensor() || !is_mask(e.toTensor())) {
        expanded.push_back(e.isNone() ? std::optional<at::Tensor>() : e.toTensor());
        continue;
      }
      if (stays) {
        expanded.push_back(truth(e.toTensor()));
        continue;
      }
      const at::Tensor positions = at::nonzero(e.toTensor());
      for (const at::Tensor& column : positions.unbind(1)) expanded.push_back(column);
    }
    (*stack)[base + 1] = std::move(expanded);
  }
  (*recorder_)(op, keys, stack);
}

}  // namespace torch_xla::dispatch
