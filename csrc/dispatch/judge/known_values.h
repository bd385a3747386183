// Gives values of xla tensors that the host can look at without waiting.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace torch_xla::dispatch {

// Returns a CPU tensor over the memory of an xla tensor, or nullopt where its values are not there
// yet or not in the host's memory. The caller holds the GraphLock and does not write to it.
std::optional<at::Tensor> known_values(const at::Tensor& tensor);

}  // namespace torch_xla::dispatch
