// The shapes of what collectives give (ops/collectives.h).
#pragma once

#include <string_view>

#include <ATen/core/Tensor.h>

namespace torch_xla::dispatch {

// A tensor like the one that `what` gives of x in a group of `size`, without values. `dims` are the
// dimensions that it names.
at::Tensor shape_given(const at::Tensor& x, std::string_view what, at::IntArrayRef dims,
                       int64_t size);

}  // namespace torch_xla::dispatch
