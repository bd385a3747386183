// The stack on which a thread handles signals.
#pragma once

namespace torch_xla::util {

// Gives the calling thread one of 1 MiB. That of Python's faulthandler, of 16 KiB, has to hold the
// handlers of Python and of PyTorch, one within the other: together they need 12 KiB, and more
// where the processor has larger registers to save. Returns whether the system has the memory.
bool widen_signal_stack();

}  // namespace torch_xla::util
