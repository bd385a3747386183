// Loops and branches as calls of one node each, whose bodies are functions that are recorded once.
// Bodies may read any tensor, and write those that they make; each throws what its body throws,
// and where a body needs values or runs calls on the host.
#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "lazy/tensor.h"

namespace torch_xla::dispatch {

using Tensors = std::vector<at::Tensor>;
using Body = c10::function_ref<Tensors(const Tensors&)>;

// Replaces the carried tensors by what `body` gives for them while `condition` gives true.
Tensors while_loop(Body condition, Body body, const Tensors& carried);

// Returns what one of two functions without arguments gives.
Tensors cond(const at::Tensor& predicate, Body on_true, Body on_false);

// Calls `combine` with the carried tensors and row i of each of `xs`, for each i in turn. It gives
// the next carried tensors and further ones, of which the result holds those of all calls, stacked.
// In reverse, it begins with the last row.
Tensors scan(Body combine, const Tensors& init, const Tensors& xs, bool reverse);

// Returns the values of tensors of one device, which is `device` where that is given. The caller
// holds the GraphLock.
std::vector<lazy::Value> values_of(const char* name, const Tensors& tensors,
                                   std::optional<int>& device);
// Returns the geometry of a new tensor that takes the value of this one: its own, if it is dense.
const lazy::Geometry* result_geometry(const at::Tensor& tensor);

}  // namespace torch_xla::dispatch
