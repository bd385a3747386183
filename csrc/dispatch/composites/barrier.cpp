// torch_xla::optimization_barrier, which keeps the compiler from moving work across it.
#include <vector>

#include <ATen/ops/empty_like.h>

#include "dispatch/calls/own_operator.h"
#include "ops/rules.h"

namespace torch_xla::dispatch {
namespace {

std::vector<at::Tensor> same_shapes(at::TensorList tensors) {
  std::vector<at::Tensor> results;
  for (const at::Tensor& t : tensors) results.push_back(at::empty_like(t));
  return results;
}

const OwnOperator optimization_barrier("optimization_barrier(Tensor[] tensors) -> Tensor[]",
                                       same_shapes, ops::rules::optimization_barrier);

}  // namespace
}  // namespace torch_xla::dispatch
