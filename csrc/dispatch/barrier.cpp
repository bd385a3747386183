// torch_xla::optimization_barrier, which keeps the compiler from moving work across it.
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

namespace torch_xla::dispatch {
namespace {

std::vector<at::Tensor> optimization_barrier_meta(at::TensorList tensors) {
  std::vector<at::Tensor> results;
  for (const at::Tensor& t : tensors) results.push_back(at::empty_like(t));
  return results;
}

TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  m.def("optimization_barrier(Tensor[] tensors) -> Tensor[]");
}

TORCH_LIBRARY_IMPL(torch_xla, Meta, m) {
  m.impl("optimization_barrier", TORCH_FN(optimization_barrier_meta));
}

}  // namespace
}  // namespace torch_xla::dispatch
