// Functions for the traits of several families: shapes, layouts, and the checks of PyTorch's CPU
// kernels.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <vector>

#include <ATen/core/Tensor.h>

#include "lazy/geometry.h"
#include "ops/traits.h"

namespace torch_xla::ops {

// Makes a tensor of this geometry without memory.
at::Tensor meta_tensor(const lazy::Geometry& geometry, bool wrapped_number);
// The same, of these sizes, row-major.
at::Tensor meta_of_sizes(at::ScalarType dtype, const std::vector<int64_t>& sizes);
inline at::Tensor meta_of_sizes(const at::Tensor& like, const std::vector<int64_t>& sizes) {
  return meta_of_sizes(like.scalar_type(), sizes);
}
// The same, of matrices, column-major.
at::Tensor meta_of_columns(const at::Tensor& like);

// Makes the result of an elementwise operator, with the strides of PyTorch's CPU kernels.
at::Tensor meta_of_elementwise(std::initializer_list<at::Tensor> operands, at::ScalarType dtype);

// --- Traits::meta ---
// These stand in place of Python functions for usual arguments; others go to PyTorch's functions.
//
// One elementwise result of the first argument: of its dtype where that is of floats; of its dtype,
// or of that of a part where it is complex; of bool.
void floats_like_first(MetaCall& call);
void parts_like_first(MetaCall& call);
void bools_like_first(MetaCall& call);
// One elementwise result of the first two arguments, where they are floats of one dtype.
void floats_like_pair(MetaCall& call);
// One result of the sizes of the first or the second argument.
void like_first(MetaCall& call);
void like_second(MetaCall& call);
// Two results, a value and its position, of a reduction of the first argument along the dimension
// that argument `Dim` gives. The argument after `Dim` is keepdim.
void value_and_position(MetaCall& call, size_t dim);
template <size_t Dim>
void value_and_position(MetaCall& call) {
  value_and_position(call, Dim);
}
// Runs PyTorch's function with the switch for deterministic algorithms off: it takes Meta tensors
// for CUDA's, whose kernels are not deterministic.
void in_any_order(MetaCall& call);

// --- Traits::layout ---
inline at::MemoryFormat row_major(const Arguments&) { return at::MemoryFormat::Contiguous; }
inline at::MemoryFormat layout_of_input(const Arguments& a) {
  return a.tensor(0).suggest_memory_format();
}

// --- Traits::checks_call ---
void dims_of_a_bitset(const Arguments& a);

// Throws PyTorch's message if a `result` dtype may not be written to an `out` dtype, as floats to
// integers.
void check_can_cast(at::ScalarType result, at::ScalarType out);
// Throws PyTorch's message if a window that starts at element `offset` reaches out of a storage.
void check_window(const lazy::Geometry& window, int64_t offset, size_t storage_bytes);

inline bool is_mask(const at::Tensor& index) {
  return index.defined() && (index.scalar_type() == at::kBool || index.scalar_type() == at::kByte);
}

}  // namespace torch_xla::ops
