// PyTorch checks that a decomposition has worked, which a program for other compilers cannot.
#include <ATen/core/Tensor.h>
#include <ATen/ops/_linalg_check_errors_native.h>
#include <torch/library.h>

#include "lazy/recording.h"

namespace torch_xla::dispatch {
namespace {

void check_unless_exported(const at::Tensor& info, std::string_view function, bool is_matrix) {
  const lazy::Recording* recording = lazy::Recording::current();
  if (recording != nullptr && recording->is_export()) return;
  at::native::_linalg_check_errors(info, function, is_matrix);
}

TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("_linalg_check_errors", TORCH_FN(check_unless_exported));
}

}  // namespace
}  // namespace torch_xla::dispatch
