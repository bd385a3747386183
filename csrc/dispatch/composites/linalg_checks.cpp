// PyTorch looks at whether a decomposition has worked, which a program for other compilers cannot.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_linalg_check_errors_native.h>
#include <torch/library.h>

#include "dispatch/record/exported_function.h"

namespace torch_xla::dispatch {
namespace {

void check_unless_exported(const at::Tensor& info, std::string_view function, bool is_matrix) {
  if (!is_exporting()) at::native::_linalg_check_errors(info, function, is_matrix);
}

TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("_linalg_check_errors", TORCH_FN(check_unless_exported));
}

}  // namespace
}  // namespace torch_xla::dispatch
