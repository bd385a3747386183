// Registers every kernel of the xla device with PyTorch's dispatcher. Called once, at import.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace torch_xla::dispatch {

void register_kernels();
// Throws where nothing can reach a rule: it is dead code, or its operator's kernel is another one
// than its author thinks. A view without an inverse cannot be written through. For tests: another
// PyTorch than the one that was tested may have fewer operators, and works all the same.
void check_rules();
// Returns whether calls of the operator go through the recorder.
bool is_recorded(const c10::OperatorHandle& op);

}  // namespace torch_xla::dispatch
