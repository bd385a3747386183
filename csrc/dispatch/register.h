// Registers every kernel of the xla device with PyTorch's dispatcher. Called once, at import.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch_xla::dispatch {

void register_kernels();
// Whether calls of the operator go through the recorder.
bool is_recorded(const c10::OperatorHandle& op);

}  // namespace torch_xla::dispatch
