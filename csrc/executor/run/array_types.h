// The types in which devices hold values: dtypes and shapes of PyTorch in words of PJRT and XLA.
#pragma once

#include <string>

#include <c10/core/ScalarType.h>
#include <c10/util/ArrayRef.h>

#include "lazy/geometry.h"
#include "pjrt/buffer.h"

namespace torch_xla::executor {

pjrt::DType to_pjrt(at::ScalarType dtype);
at::ScalarType to_torch(pjrt::DType dtype);
// Prints how a device holds values in XLA's words: f32[5,4]{1,0}.
std::string xla_shape(const lazy::Geometry& geometry);
// Returns the dtype of the device's buffer, which may be narrower than the tensor's.
at::ScalarType held_dtype(const pjrt::Array& array);

// Returns how devices hold a value of these sizes of which `sharding` is said. Null where each
// holds the whole, as of a value without elements.
const spmd::Sharding* held_sharding(const spmd::Sharding* sharding, at::IntArrayRef sizes);

}  // namespace torch_xla::executor
