// The few operators that PyTorch has CPU kernels but no Meta kernels for (of grouped_mm: one for
// bfloat16 alone), whose results have a shape that the arguments tell.
#include <algorithm>
#include <string_view>
#include <unordered_map>

#include <ATen/ExpandUtils.h>
#include <ATen/ops/result_type.h>

#include "dispatch/meta.h"
#include "dispatch/resize.h"

namespace torch_xla::dispatch {
namespace {

using torch::jit::Stack;

at::Tensor of_sizes(const at::Tensor& like, std::vector<int64_t> sizes) {
  return meta_tensor(*lazy::intern_contiguous(like.scalar_type(), sizes), false);
}

// Leaves the results in place of the arguments.
void leave(Stack& stack, size_t base, std::initializer_list<c10::IValue> results) {
  torch::jit::drop(stack, stack.size() - base);
  for (const c10::IValue& r : results) stack.push_back(r);
}

// One result like the second argument.
void like_second(Stack& stack, size_t base) {
  const at::Tensor x = stack[base + 1].toTensor();
  leave(stack, base, {of_sizes(x, x.sizes().vec())});
}

// (self, target, reduction, ..): PyTorch's Python function promotes, its CPU kernel does not.
void huber_loss(Stack& stack, size_t base) {
  const at::Tensor x = stack[base].toTensor(), target = stack[base + 1].toTensor();
  check_can_cast(at::result_type(x, target), x.scalar_type());
  const bool is_reduced = stack[base + 2].toInt() != 0;
  leave(stack, base,
        {of_sizes(
            x, is_reduced ? std::vector<int64_t>() : at::infer_size(x.sizes(), target.sizes()))});
}

void geqrf(Stack& stack, size_t base) {
  const at::Tensor x = stack[base].toTensor();
  TORCH_CHECK(x.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  std::vector<int64_t> tau(x.sizes().begin(), x.sizes().end() - 2);
  tau.push_back(std::min(x.size(-2), x.size(-1)));
  leave(stack, base, {of_sizes(x, x.sizes().vec()), of_sizes(x, tau)});
}

// (self, bins): how many; or their edges.
void histogram(Stack& stack, size_t base) {
  const at::Tensor x = stack[base].toTensor();
  const c10::IValue& bins = stack[base + 1];
  const int64_t count = bins.isTensor() ? bins.toTensor().numel() - 1 : bins.toInt();
  TORCH_CHECK(count > 0, "torch.histogram(): bins must be > 0, but got ", count,
              " for dimension 0");
  leave(stack, base, {of_sizes(x, {count}), of_sizes(x, {count + 1})});
}

std::vector<int64_t> bin_counts(const c10::IValue& bins) {
  if (bins.isIntList()) return bins.toIntVector();
  std::vector<int64_t> counts;
  for (const at::Tensor& edges : bins.toTensorVector()) counts.push_back(edges.numel() - 1);
  return counts;
}

void histogramdd(Stack& stack, size_t base) {
  leave(stack, base, {of_sizes(stack[base].toTensor(), bin_counts(stack[base + 1]))});
}

void histogramdd_edges(Stack& stack, size_t base) {
  const at::Tensor x = stack[base].toTensor();
  c10::List<at::Tensor> edges;
  for (const int64_t count : bin_counts(stack[base + 1])) edges.push_back(of_sizes(x, {count + 1}));
  leave(stack, base, {edges});
}

// (self, mat2, offs, bias, out_dtype): a matrix per group, or two dimensions of which one is cut
// into the groups.
void grouped_mm(Stack& stack, size_t base) {
  const at::Tensor a = stack[base].toTensor(), b = stack[base + 1].toTensor();
  const bool has_ends = stack[base + 2].isTensor();
  TORCH_CHECK((a.dim() == 2 || a.dim() == 3) && (b.dim() == 2 || b.dim() == 3),
              "Multiplicands must be 2D or 3D but got mat_a.dim()=", a.dim(),
              " and mat_b.dim()=", b.dim());
  TORCH_CHECK(a.size(-1) == b.size(-2), "contraction dimension of mat_a and mat_b must match");
  TORCH_CHECK(
      has_ends == (a.dim() == 2 || b.dim() == 2),
      "Have to provide offsets if there is a 2d matrix, or no offset if both matrices are 3d");
  TORCH_CHECK(stack[base + 3].isNone(), "Bias not supported yet");
  std::vector<int64_t> sizes = {a.size(-2), b.size(-1)};
  if (has_ends) {
    const at::Tensor ends = stack[base + 2].toTensor();
    TORCH_CHECK(ends.dim() == 1, "offs has to be 1D");
    TORCH_CHECK(ends.scalar_type() == at::kInt, "Offsets have to be int32");
    const at::Tensor& groups = a.dim() == 3 ? a : b;
    TORCH_CHECK(groups.dim() == 2 || groups.size(0) == ends.size(0),
                "matrix batch sizes have to match");
    if (groups.dim() == 2) sizes.insert(sizes.begin(), ends.size(0));
  } else {
    TORCH_CHECK(a.size(0) == b.size(0), "batched dimension has to match");
    sizes.insert(sizes.begin(), a.size(0));
  }
  const at::ScalarType dtype = stack[base + 4].isNone()
                                   ? a.scalar_type()
                                   : static_cast<at::ScalarType>(stack[base + 4].toInt());
  const auto* geometry = lazy::intern_contiguous(dtype, sizes);
  leave(stack, base, {meta_tensor(*geometry, false)});
}

}  // namespace

MissingMeta missing_meta(const c10::OperatorHandle& op) {
  static const std::unordered_map<std::string_view, MissingMeta> kFunctions = {
      {"aten::multi_margin_loss_backward", like_second},
      {"aten::multilabel_margin_loss_backward", like_second},
      {"aten::fractional_max_pool3d_backward", like_second},
      {"aten::_ctc_loss_backward", like_second},
      {"aten::geqrf", geqrf},
      {"aten::huber_loss", huber_loss},
      {"aten::_grouped_mm", grouped_mm},
      {"aten::histogram", histogram},
      {"aten::_histogramdd_from_bin_cts", histogramdd},
      {"aten::_histogramdd_from_bin_tensors", histogramdd},
      {"aten::_histogramdd_bin_edges", histogramdd_edges},
  };
  const auto it = kFunctions.find(op.schema().name());
  return it == kFunctions.end() ? nullptr : it->second;
}

}  // namespace torch_xla::dispatch
