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
// What turns the elements of memory into those of the tensor.
Computation computation_of(const lazy::TensorImpl& tensor);
// Whether the tensor's elements are those of its storage's value, row-major, where its strides and
// offset say. Needs the graph lock.
bool shows_memory(const lazy::TensorImpl& tensor);

// A view of memory, computed as `computation` says.
at::Tensor computed(at::Tensor view, const Computation& computation);

// Refuses, as PyTorch does, to look at the bits of elements that are not those of memory.
void check_bits_of_memory(const at::Tensor& self, at::ScalarType dtype);
void check_parts_of_memory(const at::Tensor& self);

}  // namespace torch_xla::dispatch
