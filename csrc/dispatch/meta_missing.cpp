// The few operators that PyTorch has CPU kernels but no Meta kernels for (of grouped_mm: one for
// bfloat16 alone; of Fourier transforms: CUDA's; of huber_loss: of one dtype; of eig: row-major; of
// dropout's gradient, of quotients and of logic: without strides), whose results have a shape that
// the arguments tell.
#include <algorithm>
#include <numeric>
#include <string_view>
#include <unordered_map>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ScalarOps.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/div_meta_dispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq_meta_dispatch.h>
#include <ATen/ops/huber_loss.h>
#include <ATen/ops/mul.h>
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

// (grad_output, mask, scale)
void native_dropout_backward(Stack& stack, size_t base) {
  const at::Tensor masked = at::mul(stack[base].toTensor(), stack[base + 1].toTensor());
  leave(stack, base, {at::mul(masked, stack[base + 2].toScalar())});
}

// (size, [generator,] dtype, layout, device, pin_memory): a tensor without elements may have any
// dtype.
void randn(Stack& stack, size_t base) {
  const c10::IValue& given = stack[stack.size() - 4];
  const at::ScalarType dtype =
      given.isNone() ? c10::get_default_dtype_as_scalartype() : given.toScalarType();
  const auto* geometry = lazy::intern_contiguous(dtype, stack[base].toIntVector());
  TORCH_CHECK_NOT_IMPLEMENTED(!c10::isIntegralType(dtype, true) || geometry->numel == 0,
                              "\"normal_kernel_cpu\" not implemented for '", dtype, "'");
  leave(stack, base, {meta_tensor(*geometry, false)});
}

// (self, other): the strides are those of a quotient that is not rounded.
void floor_divide(Stack& stack, size_t base) {
  const c10::IValue& by = stack[base + 1];
  const at::Tensor divisor =
      by.isTensor() ? by.toTensor() : at::native::wrapped_scalar_tensor(by.toScalar(), at::kMeta);
  leave(stack, base, {at::meta::div(stack[base].toTensor(), divisor, "floor")});
}

// (self, target, reduction, delta): PyTorch's Python function promotes, its CPU kernel does not.
void huber_loss(Stack& stack, size_t base) {
  const at::Tensor x = stack[base].toTensor(), target = stack[base + 1].toTensor();
  check_can_cast(at::result_type(x, target), x.scalar_type());
  leave(stack, base,
        {at::huber_loss(x, target.to(x.scalar_type()), stack[base + 2].toInt(),
                        stack[base + 3].toDouble())});
}

void geqrf(Stack& stack, size_t base) {
  const at::Tensor x = stack[base].toTensor();
  TORCH_CHECK(x.dim() >= 2, "torch.geqrf: input must have at least 2 dimensions.");
  std::vector<int64_t> tau(x.sizes().begin(), x.sizes().end() - 2);
  tau.push_back(std::min(x.size(-2), x.size(-1)));
  leave(stack, base, {at::empty(x.mT().sizes(), x.options()).mT(), of_sizes(x, tau)});
}

// (self, batch1, batch2, out_dtype, ..): PyTorch's Python function takes the dtype for a factor.
void baddbmm_to_dtype(Stack& stack, size_t base) {
  const at::Tensor product = at::bmm(stack[base + 1].toTensor(), stack[base + 2].toTensor());
  (void)stack[base].toTensor().expand(product.sizes());
  leave(stack, base, {product.to(stack[base + 3].toScalarType())});
}

// What is refused here is put to the CPU's kernel, which has the words.
void eig(Stack& stack, size_t base) {
  const at::Tensor x = stack[base].toTensor();
  TORCH_CHECK(x.dim() >= 2 && x.size(-1) == x.size(-2) && (x.is_floating_point() || x.is_complex()),
              "torch.linalg.eig: expected square matrices.");
  const at::TensorOptions complex = x.options().dtype(at::toComplexType(x.scalar_type()));
  leave(stack, base,
        {at::empty(x.sizes().slice(0, x.dim() - 1), complex), at::empty(x.sizes(), complex).mT()});
}

// (self, other): the strides are those of a comparison.
void logic(Stack& stack, size_t base) {
  const at::Tensor &self = stack[base].toTensor(), &other = stack[base + 1].toTensor();
  leave(stack, base, {at::meta::eq(self, other)});
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

// --- Fourier transforms ---------------------------------------------------------------------

std::vector<int64_t> dims_of(const c10::IValue& dims, const at::Tensor& x) {
  std::vector<int64_t> wrapped = dims.toIntVector();
  for (int64_t& d : wrapped) d = at::maybe_wrap_dim(d, x.dim());
  return wrapped;
}

using Order = std::vector<int64_t>::iterator;
// Such dimensions with long strides come first.
void sort_by_stride(Order begin, Order end, const at::Tensor& x) {
  std::sort(begin, end, [&](int64_t a, int64_t b) { return x.stride(a) > x.stride(b); });
}

// MKL takes the transformed dimensions of x as the innermost, and so leaves them in the result.
at::Tensor transformed(const at::Tensor& x, at::ScalarType dtype, const std::vector<int64_t>& sizes,
                       const std::vector<int64_t>& dims) {
  if (!at::hasMKL()) return meta_tensor(*lazy::intern_contiguous(dtype, sizes), false);
  std::vector<int64_t> order(x.dim());
  std::iota(order.begin(), order.end(), 0);
  const Order batch_end = std::partition(order.begin(), order.end(), [&](int64_t d) {
    return std::ranges::find(dims, d) == dims.end();
  });
  sort_by_stride(order.begin(), batch_end, x);
  std::ranges::copy(dims, batch_end);
  std::vector<int64_t> strides(x.dim());
  int64_t next = 1;
  for (auto d = order.rbegin(); d != order.rend(); ++d) {
    strides[*d] = next;
    next *= std::max<int64_t>(sizes[*d], 1);
  }
  return at::detail::empty_strided_meta(sizes, strides, dtype);
}

at::Tensor complex_transformed(const at::Tensor& x, std::vector<int64_t> dims) {
  sort_by_stride(dims.begin(), dims.end(), x);
  return transformed(x, x.scalar_type(), x.sizes().vec(), dims);
}

// (self, dim, normalization, forward)
void fft_c2c(Stack& stack, size_t base) {
  const at::Tensor x = stack[base].toTensor();
  TORCH_CHECK(x.is_complex(), "_fft_c2c: expected a complex tensor, got ", x.scalar_type());
  const std::vector<int64_t> dims = dims_of(stack[base + 1], x);
  leave(stack, base, {dims.empty() ? x.clone() : complex_transformed(x, dims)});
}

// (self, dim, normalization, onesided): one halves the last of dim.
void fft_r2c(Stack& stack, size_t base) {
  const at::Tensor x = stack[base].toTensor();
  TORCH_CHECK(x.is_floating_point(), "_fft_r2c: expected a real floating-point tensor, got ",
              x.scalar_type());
  std::vector<int64_t> dims = dims_of(stack[base + 1], x), sizes = x.sizes().vec();
  if (stack[base + 3].toBool()) sizes[dims.back()] = sizes[dims.back()] / 2 + 1;
  sort_by_stride(dims.begin(), dims.end() - 1, x);
  leave(stack, base, {transformed(x, c10::toComplexType(x.scalar_type()), sizes, dims)});
}

// (self, dim, normalization, last_dim_size): all but the last of dim are transformed before it.
void fft_c2r(Stack& stack, size_t base) {
  at::Tensor x = stack[base].toTensor();
  TORCH_CHECK(x.is_complex(), "_fft_c2r: expected a complex tensor, got ", x.scalar_type());
  std::vector<int64_t> dims = dims_of(stack[base + 1], x), sizes = x.sizes().vec();
  const int64_t last = dims.back();
  sizes[last] = stack[base + 3].toInt();
  dims.pop_back();
  if (!dims.empty()) x = complex_transformed(x, dims);
  leave(stack, base, {transformed(x, c10::toRealValueType(x.scalar_type()), sizes, {last})});
}

}  // namespace

MissingMeta missing_meta(const c10::OperatorHandle& op) {
  if (op.operator_name() == c10::OperatorName("aten::baddbmm", "dtype")) return baddbmm_to_dtype;
  static const std::unordered_map<std::string_view, MissingMeta> kFunctions = {
      {"aten::multi_margin_loss_backward", like_second},
      {"aten::multilabel_margin_loss_backward", like_second},
      {"aten::fractional_max_pool3d_backward", like_second},
      {"aten::_ctc_loss_backward", like_second},
      {"aten::_fft_c2c", fft_c2c},
      {"aten::_fft_c2r", fft_c2r},
      {"aten::_fft_r2c", fft_r2c},
      {"aten::floor_divide", floor_divide},
      {"aten::geqrf", geqrf},
      {"aten::randn", randn},
      {"aten::huber_loss", huber_loss},
      {"aten::native_dropout_backward", native_dropout_backward},
      {"aten::_grouped_mm", grouped_mm},
      {"aten::linalg_eig", eig},
      {"aten::logical_and", logic},
      {"aten::logical_or", logic},
      {"aten::logical_xor", logic},
      {"aten::histogram", histogram},
      {"aten::_histogramdd_from_bin_cts", histogramdd},
      {"aten::_histogramdd_from_bin_tensors", histogramdd},
      {"aten::_histogramdd_bin_edges", histogramdd_edges},
  };
  const auto it = kFunctions.find(op.schema().name());
  return it == kFunctions.end() ? nullptr : it->second;
}

}  // namespace torch_xla::dispatch
