// Runs operators on the host: fetches the values, calls PyTorch's CPU kernel and uploads the
// results. Counts the calls by operator.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace torch_xla::dispatch {

void host_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// Handles a CPU tensor with dimensions in a call with xla tensors: moves indices to the device, as
// PyTorch does, and throws PyTorch's error for all others.
void upload_index_or_fail(const c10::OperatorHandle& op, torch::jit::Stack& stack, size_t base,
                          int argument, const at::Tensor& tensor);
[[noreturn]] void fail_of_cpu_tensor(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                     size_t base, int argument, const at::Tensor& tensor);

// Returns CPU copies of xla tensors, fetched together; the tensors keep what was computed for them.
// `why` says in reports of waits what asks for them, and lives as long as the process.
std::vector<at::Tensor> fetch(const std::vector<at::Tensor>& tensors, std::string_view why);
// For tests: makes programs read views, as they read large ones where the host cannot read memory.
void set_reads_views_by_programs(bool on);
at::Tensor to_device(const at::Tensor& cpu, int device);

// Refuses tensors of ours in a group of torch.distributed's for the CPU: its collectives go on
// after the call, which would write back what it took.
[[noreturn]] void fail_collective(const std::string& name);

}  // namespace torch_xla::dispatch
