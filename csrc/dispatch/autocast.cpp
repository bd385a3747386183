// Autocast on xla: which operators run in the narrow dtype, which in float32. The key AutocastXLA
// comes from PyTorch without a single kernel, so the policies here are all there are.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace torch_xla::dispatch {
namespace {

// PyTorch's lists name these as its own namespace does.
using at::IntArrayRef;
using at::Scalar;
using at::ScalarType;
using at::Tensor;

// CPU autocast runs it in float32, CUDA's refuses it: the gradient that comes back to the narrow
// probabilities overflows float16. bfloat16 has float32's range.
Tensor binary_cross_entropy(const Tensor& input, const Tensor& target,
                            const std::optional<Tensor>& weight, int64_t reduction) {
  using at::autocast::cached_cast;
  TORCH_CHECK(at::autocast::get_autocast_dtype(at::kXLA) != at::kHalf,
              "binary_cross_entropy: expected autocast to bfloat16 or none, got float16, in which "
              "its gradient overflows. Use binary_cross_entropy_with_logits on what the sigmoid "
              "was applied to, or disable autocast around the call.");
  const c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::AutocastXLA);
  return at::binary_cross_entropy(cached_cast(at::kFloat, input, at::kXLA),
                                  cached_cast(at::kFloat, target, at::kXLA),
                                  cached_cast(at::kFloat, weight, at::kXLA), reduction);
}

#define TXLA_POLICY(policy, ...) KERNEL(at::kXLA, __VA_ARGS__, policy)
#define TXLA_NARROW(...) TXLA_POLICY(lower_precision_fp, __VA_ARGS__)
#define TXLA_FP32(...) TXLA_POLICY(fp32, __VA_ARGS__)
#define TXLA_FP32_OUTPUT(...) TXLA_POLICY(fp32_set_opt_dtype, __VA_ARGS__)
#define TXLA_PROMOTE(...) TXLA_POLICY(promote, __VA_ARGS__)
#define TXLA_APPEND_DTYPE(...) KERNEL_DIFFERENT_REDISPATCH_SIGNATURE(at::kXLA, __VA_ARGS__)

// What PyTorch's lists for all devices leave to a device: recurrent layers, which are one call
// here.
#define TXLA_FORALL_LAYERS(_)     \
  _(lstm, input)                  \
  _(lstm, data)                   \
  _(gru, input)                   \
  _(gru, data)                    \
  _(rnn_tanh, input)              \
  _(rnn_tanh, data)               \
  _(rnn_relu, input)              \
  _(rnn_relu, data)               \
  _(_native_multi_head_attention) \
  _(_addmm_activation)

// What has no narrow form anywhere: linear algebra, Fourier transforms, complex numbers. CPU
// autocast runs these in float32; CUDA's lets them fail.
#define TXLA_FORALL_WITHOUT_NARROW_FORM(_) \
  _(fft_fft)                               \
  _(fft_ifft)                              \
  _(fft_fft2)                              \
  _(fft_ifft2)                             \
  _(fft_fftn)                              \
  _(fft_ifftn)                             \
  _(fft_rfft)                              \
  _(fft_irfft)                             \
  _(fft_rfft2)                             \
  _(fft_irfft2)                            \
  _(fft_rfftn)                             \
  _(fft_irfftn)                            \
  _(fft_hfft)                              \
  _(fft_ihfft)                             \
  _(stft)                                  \
  _(stft, center)                          \
  _(polar)                                 \
  _(view_as_complex)                       \
  _(quantile)                              \
  _(quantile, scalar)                      \
  _(nanquantile)                           \
  _(nanquantile, scalar)                   \
  _(ctc_loss, IntList)                     \
  _(ctc_loss, Tensor)                      \
  _(cholesky)                              \
  _(cholesky_inverse)                      \
  _(cholesky_solve)                        \
  _(geqrf)                                 \
  _(inverse)                               \
  _(lu_solve)                              \
  _(_lu_with_info)                         \
  _(orgqr)                                 \
  _(ormqr)                                 \
  _(pinverse)                              \
  _(qr)                                    \
  _(svd)                                   \
  _(triangular_solve)                      \
  _(linalg_cholesky)                       \
  _(linalg_cholesky_ex)                    \
  _(linalg_cond)                           \
  _(linalg_cond, p_str)                    \
  _(linalg_det)                            \
  _(linalg_eig)                            \
  _(linalg_eigh)                           \
  _(linalg_eigvals)                        \
  _(linalg_eigvalsh)                       \
  _(linalg_householder_product)            \
  _(linalg_inv)                            \
  _(linalg_inv_ex)                         \
  _(linalg_lstsq)                          \
  _(linalg_lu)                             \
  _(linalg_lu_factor)                      \
  _(linalg_matrix_exp)                     \
  _(linalg_matrix_rank)                    \
  _(linalg_matrix_rank, atol_rtol_float)   \
  _(linalg_matrix_rank, atol_rtol_tensor)  \
  _(linalg_matrix_rank, tol_tensor)        \
  _(linalg_pinv)                           \
  _(linalg_qr)                             \
  _(linalg_slogdet)                        \
  _(linalg_solve)                          \
  _(linalg_solve_triangular)               \
  _(linalg_svd)                            \
  _(linalg_svdvals)                        \
  _(linalg_tensorinv)                      \
  _(linalg_tensorsolve)

TORCH_LIBRARY_IMPL(_, AutocastXLA, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

// The first five lists are PyTorch's own, the ones that CUDA's policies are made of.
TORCH_LIBRARY_IMPL(aten, AutocastXLA, m) {
  AT_FORALL_LOWER_PRECISION_FP(TXLA_NARROW)
  AT_FORALL_FP32(TXLA_FP32)
  AT_FORALL_FP32_SET_OPT_DTYPE(TXLA_FP32_OUTPUT)
  AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(TXLA_APPEND_DTYPE)
  AT_FORALL_PROMOTE(TXLA_PROMOTE)
  TXLA_FORALL_LAYERS(TXLA_NARROW)
  TXLA_FORALL_WITHOUT_NARROW_FORM(TXLA_FP32)
  TXLA_PROMOTE(index_copy)
  m.impl("binary_cross_entropy", TORCH_FN(binary_cross_entropy));
}

}  // namespace
}  // namespace torch_xla::dispatch
