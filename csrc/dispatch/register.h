// Registers every kernel of the xla device with PyTorch's dispatcher. Called once, at import.
#pragma once

namespace torch_xla::dispatch {

void register_kernels();

}  // namespace torch_xla::dispatch
