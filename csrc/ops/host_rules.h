// Chooses, on the CPU target, between PyTorch's kernels and XLA's code. The defaults follow
// benchmarks/host_kernels.py; XLA_HOST_KERNELS overrides them.
#pragma once

#include <initializer_list>

#include "ops/lowering.h"
#include "ops/on_host.h"

namespace torch_xla::ops {

// Says whether to call PyTorch's kernel, given what measurements say for this call.
bool choose_host(bool faster);

// The rule for all platforms.
hlo::Values xla_code(Lowering& l);

bool is_empty(Lowering& l, std::initializer_list<size_t> args);
inline bool is_narrow(hlo::DType dtype) {
  return dtype == hlo::DType::BF16 || dtype == hlo::DType::F16;
}
inline bool is_whole_float(hlo::DType dtype) {
  return dtype == hlo::DType::F32 || dtype == hlo::DType::F64;
}

// Returns whether PyTorch has a fast kernel for products of this dtype on this processor. Without
// the instructions for it, a narrow product takes a hundred times what XLA needs, which widens to
// f32.
bool multiplies(hlo::DType dtype);

// Where PyTorch has oneDNN's own kernels for whole floats.
#ifdef __x86_64__
inline constexpr bool kHasOneDnn = true;
#else
inline constexpr bool kHasOneDnn = false;
#endif

// Batches at least as large are cut into parts of theirs; of smaller ones, something else is.
inline constexpr int64_t kBatch = 8;

// Rules of what PyTorch's kernel always computes faster: what LAPACK has, loops with an end that
// depends on the values. The factors that some of LAPACK's return with their result are those of
// the transpose, for a matrix that lies row by row.
template <Fails fails = Fails::Perhaps>
hlo::Values faster_on_host(Lowering& l) {
  return choose_host(true) ? on_host(l, {}, fails) : xla_code(l);
}
inline hlo::Values faster_on_host_as_laid_out(Lowering& l) {
  return choose_host(true) ? on_host_as_laid_out(l) : xla_code(l);
}

}  // namespace torch_xla::ops
