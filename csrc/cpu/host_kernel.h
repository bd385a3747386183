// Runs the calls that HostCall writes: one typed FFI handler, registered under kHostKernelTarget
// for platform "Host", calls PyTorch's CPU kernels on a program's buffers.
#pragma once

namespace torch_xla::cpu {

inline constexpr char kHostKernelTarget[] = "torch_xla.host_kernel";
// The XLA_FFI_Handler*. It needs neither the GIL nor any state of this process but PyTorch's
// operators: a serialized executable runs in another process that registers it too.
void* host_kernel_handler();

// The kernel of this operator waits for other processes. It runs on a thread of its own, and what
// the program computes without its results goes on.
struct WaitingOperator {
  explicit WaitingOperator(const char* name);
};

}  // namespace torch_xla::cpu
