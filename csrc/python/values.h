// Reads lists of tensors, for the bindings that take them.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lazy/node.h"

namespace torch_xla::python {

// Returns the present values of xla tensors and sets `device` to theirs, unless there are no
// tensors. `what` names the caller in errors.
std::vector<lazy::Value> present_values(const std::vector<at::Tensor>& tensors, const char* what,
                                        int* device);

// Returns those of everything that waits on `device` where no tensors are named. The caller holds
// the GraphLock.
std::vector<lazy::Value> values_or_pending(const std::vector<at::Tensor>& tensors, const char* what,
                                           int* device);

}  // namespace torch_xla::python
