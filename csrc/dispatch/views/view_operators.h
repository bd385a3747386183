#pragma once

#include <torch/library.h>

namespace torch_xla::dispatch {

// Registers every view operator and its form in place, with `library` and with autograd.
void register_views(torch::Library& library);

}  // namespace torch_xla::dispatch
