// The order of what a device exchanges with other replicas (ops/exchange.h): a tensor that each
// exchange reads and writes.
#pragma once

#include <ATen/core/Tensor.h>

namespace torch_xla::dispatch {

// The caller holds the GraphLock.
at::Tensor order_of_exchanges(int device);
// Returns whether something was exchanged.
bool has_order_of_exchanges(int device);

}  // namespace torch_xla::dispatch
