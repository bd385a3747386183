// Values of xla tensors that the host can look at without waiting.
#pragma once

#include <optional>

#include <ATen/core/Tensor.h>

namespace torch_xla::dispatch {

// A tensor of the CPU over the memory of an xla tensor whose values are there to be looked at: on
// the CPU platform, not on their way. For use under the graph lock, and not to be written to.
std::optional<at::Tensor> known_values(const at::Tensor& tensor);

}  // namespace torch_xla::dispatch
