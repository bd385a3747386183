// What the bindings that take a list of tensors share.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "lazy/node.h"

namespace torch_xla::python {

// The present values of xla tensors, and their device, which stays as it is where there are none.
// `what` names the caller in errors.
std::vector<lazy::Value> values_of(const std::vector<at::Tensor>& tensors, const char* what,
                                   int* device);

}  // namespace torch_xla::python
