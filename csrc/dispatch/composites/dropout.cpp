#include "dispatch/composites/dropout.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/dropout_native.h>
#include <ATen/ops/native_dropout.h>
#include <torch/library.h>

namespace torch_xla::dispatch {
namespace {

// PyTorch takes native_dropout for devices that it knows; for others it makes a mask, scales it and
// multiplies. What need not be fused is PyTorch's.
at::Tensor dropout(const at::Tensor& input, double p, bool train) {
  if (train && p > 0 && p < 1 && input.sym_numel() != 0) {
    return std::get<0>(at::native_dropout(input, p, train));
  }
  return at::native::dropout(input, p, train);
}

}  // namespace

void register_dropout() {
  static auto& library = *new torch::Library(torch::Library::IMPL, "aten",
                                             c10::DispatchKey::AutogradXLA, __FILE__, __LINE__);
  library.impl("dropout", TORCH_FN(dropout));
}

}  // namespace torch_xla::dispatch
