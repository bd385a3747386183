// The backend `xla` of torch.distributed. Calls on tensors of xla are recorded as exchanges
// (exchange.h) and complete at once. Tensors of the CPU go through a backend of c10d for the CPU,
// as do barriers, which first wait for what was recorded.
#pragma once

#include <string>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

namespace torch_xla::dispatch {

// Returns a group of the process group's ranks, which are replicas `members` of the job, in order.
// `host` is a group of the same ranks with a backend for the CPU. The group has the backend for
// tensors of xla and of the CPU; Python registers it with torch.distributed under its own group.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(
    const c10::intrusive_ptr<c10d::ProcessGroup>& host, std::vector<int64_t> members,
    std::chrono::milliseconds timeout);

}  // namespace torch_xla::dispatch
