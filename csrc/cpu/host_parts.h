// Parts of a host kernel run side by side on the program's own threads, each on one thread.
// PyTorch's kernels would start an OpenMP team for every thread that calls them: teams beyond the
// first make all of them slow, PyTorch eager's too, since idle workers then sleep between calls.
#pragma once

#include <cstdint>
#include <functional>

#include <xla/ffi/api/c_api.h>

namespace torch_xla::cpu {

// Threads that the program may use.
int64_t thread_count(const XLA_FFI_CallFrame& frame);

// Calls run(0) .. run(parts - 1), the calling thread among those that do. Throws what one of them
// threw, when all are done.
void run_parts(const XLA_FFI_CallFrame& frame, int64_t parts,
               const std::function<void(int64_t)>& run);

// Makes a call that waits for others on a thread of its own, and returns at once: as many threads
// as wait at a time, kept for later ones. The call must not throw.
void run_waiting(std::function<void()> call);

}  // namespace torch_xla::cpu
