// Conjugated and negated views. PyTorch tells them by bits on the tensor; here they are steps of
// the view, which kernels need not look at.
#pragma once

#include <ATen/core/Tensor.h>

#include "lazy/tensor.h"

namespace torch_xla::dispatch {

struct Computation {
  bool conjugates = false;
  bool negates = false;

  bool is_nothing() const { return !conjugates && !negates; }
};
// Returns what turns the elements of memory into those of the tensor.
Computation computation_of(const lazy::TensorImpl& tensor);
// Returns whether the storage's value lies as its memory would, so that the tensor's strides and
// offset find its elements there. The caller holds the GraphLock.
bool shows_memory(const lazy::TensorImpl& tensor);

// Conjugates and negates a view of memory as `computation` says.
at::Tensor computed(at::Tensor view, const Computation& computation);

// Throw PyTorch's errors for looking at the bits of elements that are not those of memory.
void check_bits_of_memory(const at::Tensor& self, at::ScalarType dtype);
void check_parts_of_memory(const at::Tensor& self);

}  // namespace torch_xla::dispatch
