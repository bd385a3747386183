// Registers every view operator and its form in place, with `library` and with autograd.
#pragma once

#include <torch/library.h>

namespace torch_xla::dispatch {

void register_views(torch::Library& library);

}  // namespace torch_xla::dispatch
