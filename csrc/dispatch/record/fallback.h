// Work on the host: values come back, PyTorch's CPU kernel runs, results go up. Counted by
// operator.
#pragma once

#include "dispatch/record/recorder.h"

namespace torch_xla::dispatch {

void host_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// A CPU tensor with dimensions met an xla tensor: indices are moved to the device, as PyTorch does;
// anything else is an error in PyTorch's words.
void upload_index_or_fail(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t base,
                          int argument, const at::Tensor& tensor);
[[noreturn]] void fail_of_cpu_tensor(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                     size_t base, int argument, const at::Tensor& tensor);

// CPU copies of lazy tensors, fetched together; the tensors keep what was computed for them.
std::vector<at::Tensor> fetch(const std::vector<at::Tensor>& tensors);
// For tests: views are read by programs, as large ones are where the host cannot read memory.
void set_reads_views_by_programs(bool on);
at::Tensor to_device(const at::Tensor& cpu, int device);

}  // namespace torch_xla::dispatch
