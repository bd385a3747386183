// Waits for PyTorch's backward threads. PyTorch runs the backward pass of a device on a thread of
// its own, which may still let go of tensors after `backward` has returned.
#pragma once

namespace torch_xla::dispatch {

// Waits until these threads hold nothing of an earlier backward pass. Called before the interpreter
// ends: letting go of a Python object after that would abort the process.
void drain_autograd_threads();

}  // namespace torch_xla::dispatch
