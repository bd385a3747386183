// Loops and branches as calls of one node each, whose bodies are functions that are recorded once.
// Bodies may read any tensor, and write those that they make; each throws what its body throws,
// and where a body needs values or runs calls on the host.
#pragma once

#include "dispatch/functions/recorded_function.h"

namespace torch_xla::dispatch {

// Replaces the carried tensors by the results of `body` for them while `condition` gives true.
Tensors while_loop(Body condition, Body body, const Tensors& carried);

// Returns the results of one of two functions without arguments.
Tensors cond(const at::Tensor& predicate, Body on_true, Body on_false);

// Calls `combine` with the carried tensors and row i of each of `xs`, for each i in turn. It gives
// the next carried tensors and further ones, of which the result holds those of all calls, stacked.
// In reverse, it begins with the last row.
Tensors scan(Body combine, const Tensors& init, const Tensors& xs, bool reverse);

}  // namespace torch_xla::dispatch
