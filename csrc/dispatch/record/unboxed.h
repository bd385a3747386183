// Kernels of the recorder that borrow the tensors of a call. The arguments of a boxed call are
// counted references, and a tensor that Python holds takes the interpreter's lock whenever its
// count leaves one or comes back to it.
#pragma once

#include <memory>
#include <optional>

#include <torch/library.h>

#include "dispatch/record/recorder.h"

namespace torch_xla::dispatch {

// Returns a kernel of this operator with the arguments of its C++ function, none where operators of
// its kind have no such kernel. The recorder is the kernel's then.
std::optional<torch::CppFunction> unboxed(const c10::OperatorHandle& op,
                                          std::unique_ptr<Recorder>& recorder);

}  // namespace torch_xla::dispatch
