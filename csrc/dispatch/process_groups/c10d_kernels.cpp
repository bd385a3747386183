// The kernels of torch.distributed's operators for tensors of xla: each asks the backend that the
// process group has for them. `make_process_group` is an operator, since Python's classes of c10d
// come from another pybind11 than ours.
#include <algorithm>
#include <tuple>

#include <torch/library.h>

#include "dispatch/process_groups/process_group.h"
#include "dispatch/record/fallback.h"

namespace torch_xla::dispatch {
namespace {

using at::Tensor;
using at::TensorList;
using Tensors = std::vector<Tensor>;
using TensorLists = std::vector<Tensors>;
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;
using Op = c10::intrusive_ptr<c10d::ReduceOp>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

c10::intrusive_ptr<c10d::Backend> backend_of(const Group& group) {
  const std::vector<c10::Device> devices = group->getDeviceTypes();
  if (std::ranges::none_of(devices, [](const c10::Device& d) { return d.is_xla(); })) {
    fail_collective("torch.distributed");
  }
  return group->getBackend(c10::DeviceType::XLA);
}

template <class Options>
Options options_with(bool is_async, int64_t timeout) {
  Options options;
  options.asyncOp = is_async;
  options.timeout = std::chrono::milliseconds(timeout);
  return options;
}

std::tuple<Tensors, WorkPtr> broadcast(TensorList tensors, const Group& group, int64_t root,
                                       int64_t root_tensor, bool is_async, int64_t timeout) {
  Tensors xs = tensors.vec();
  auto options = options_with<c10d::BroadcastOptions>(is_async, timeout);
  options.rootRank = root;
  options.rootTensor = root_tensor;
  WorkPtr work = backend_of(group)->broadcast(xs, options);
  return {std::move(xs), std::move(work)};
}

std::tuple<Tensors, WorkPtr> allreduce(TensorList tensors, const Group& group, const Op& op,
                                       const std::optional<Tensor>& /*sparse_indices*/,
                                       bool is_async, int64_t timeout) {
  Tensors xs = tensors.vec();
  auto options = options_with<c10d::AllreduceOptions>(is_async, timeout);
  options.reduceOp = *op;
  WorkPtr work = backend_of(group)->allreduce(xs, options);
  return {std::move(xs), std::move(work)};
}

WorkPtr allreduce_coalesced(TensorList tensors, const Group& group, const Op& op, bool is_async,
                            int64_t timeout) {
  Tensors xs = tensors.vec();
  auto options = options_with<c10d::AllreduceCoalescedOptions>(is_async, timeout);
  options.reduceOp = *op;
  return backend_of(group)->allreduce_coalesced(xs, options);
}

WorkPtr reduce(TensorList tensors, const Group& group, const Op& op, int64_t root,
               int64_t root_tensor, bool is_async, int64_t timeout) {
  Tensors xs = tensors.vec();
  auto options = options_with<c10d::ReduceOptions>(is_async, timeout);
  options.reduceOp = *op;
  options.rootRank = root;
  options.rootTensor = root_tensor;
  return backend_of(group)->reduce(xs, options);
}

std::tuple<TensorLists, WorkPtr> allgather(const TensorLists& outputs, TensorList inputs,
                                           const Group& group, bool is_async, int64_t timeout) {
  TensorLists to = outputs;
  Tensors xs = inputs.vec();
  WorkPtr work =
      backend_of(group)->allgather(to, xs, options_with<c10d::AllgatherOptions>(is_async, timeout));
  return {std::move(to), std::move(work)};
}

std::tuple<Tensor, WorkPtr> allgather_base(Tensor& output, Tensor& input, const Group& group,
                                           bool is_async, int64_t timeout) {
  WorkPtr work = backend_of(group)->_allgather_base(
      output, input, options_with<c10d::AllgatherOptions>(is_async, timeout));
  return {output, std::move(work)};
}

WorkPtr allgather_coalesced(const TensorLists& outputs, const TensorList& inputs,
                            const Group& group, bool is_async) {
  TensorLists to = outputs;
  Tensors xs = inputs.vec();
  return backend_of(group)->allgather_coalesced(
      to, xs, options_with<c10d::AllgatherOptions>(is_async, c10d::kUnsetTimeout.count()));
}

WorkPtr allgather_into_tensor_coalesced(TensorList outputs, TensorList inputs, const Group& group,
                                        bool is_async) {
  Tensors to = outputs.vec(), xs = inputs.vec();
  return backend_of(group)->allgather_into_tensor_coalesced(
      to, xs, options_with<c10d::AllgatherOptions>(is_async, c10d::kUnsetTimeout.count()));
}

std::tuple<Tensors, WorkPtr> reduce_scatter(const TensorList& outputs, const TensorLists& inputs,
                                            const Group& group, const Op& op, bool is_async,
                                            int64_t timeout) {
  Tensors to = outputs.vec();
  TensorLists xs = inputs;
  auto options = options_with<c10d::ReduceScatterOptions>(is_async, timeout);
  options.reduceOp = *op;
  WorkPtr work = backend_of(group)->reduce_scatter(to, xs, options);
  return {std::move(to), std::move(work)};
}

std::tuple<Tensor, WorkPtr> reduce_scatter_base(Tensor& output, Tensor& input, const Group& group,
                                                const Op& op, bool is_async, int64_t timeout) {
  auto options = options_with<c10d::ReduceScatterOptions>(is_async, timeout);
  options.reduceOp = *op;
  WorkPtr work = backend_of(group)->_reduce_scatter_base(output, input, options);
  return {output, std::move(work)};
}

WorkPtr reduce_scatter_tensor_coalesced(TensorList outputs, TensorList inputs, const Group& group,
                                        const Op& op, bool is_async, int64_t timeout) {
  Tensors to = outputs.vec(), xs = inputs.vec();
  auto options = options_with<c10d::ReduceScatterOptions>(is_async, timeout);
  options.reduceOp = *op;
  return backend_of(group)->reduce_scatter_tensor_coalesced(to, xs, options);
}

WorkPtr gather(const TensorLists& outputs, const TensorList& inputs, const Group& group,
               int64_t root, bool is_async, int64_t timeout) {
  TensorLists to = outputs;
  Tensors xs = inputs.vec();
  auto options = options_with<c10d::GatherOptions>(is_async, timeout);
  options.rootRank = root;
  return backend_of(group)->gather(to, xs, options);
}

std::tuple<Tensors, WorkPtr> scatter(const TensorList& outputs, const TensorLists& inputs,
                                     const Group& group, int64_t root, bool is_async,
                                     int64_t timeout) {
  Tensors to = outputs.vec();
  TensorLists xs = inputs;
  auto options = options_with<c10d::ScatterOptions>(is_async, timeout);
  options.rootRank = root;
  WorkPtr work = backend_of(group)->scatter(to, xs, options);
  return {std::move(to), std::move(work)};
}

std::tuple<Tensors, WorkPtr> alltoall(const TensorList& outputs, const TensorList& inputs,
                                      const Group& group, bool is_async, int64_t timeout) {
  Tensors to = outputs.vec(), xs = inputs.vec();
  WorkPtr work =
      backend_of(group)->alltoall(to, xs, options_with<c10d::AllToAllOptions>(is_async, timeout));
  return {std::move(to), std::move(work)};
}

WorkPtr alltoall_base(Tensor& output, Tensor& input, const Group& group,
                      std::vector<int64_t> output_sizes, std::vector<int64_t> input_sizes,
                      bool is_async, int64_t timeout) {
  return backend_of(group)->alltoall_base(output, input, output_sizes, input_sizes,
                                          options_with<c10d::AllToAllOptions>(is_async, timeout));
}

WorkPtr barrier(Tensor /*tensor*/, const Group& group, const std::vector<int64_t>& /*device_ids*/,
                bool is_async, int64_t timeout) {
  return backend_of(group)->barrier(options_with<c10d::BarrierOptions>(is_async, timeout));
}

void monitored_barrier(Tensor /*tensor*/, const Group& group,
                       const std::vector<int64_t>& /*device_ids*/, int64_t timeout,
                       bool wait_all_ranks) {
  backend_of(group)->monitoredBarrier(options_with<c10d::BarrierOptions>(true, timeout),
                                      wait_all_ranks);
}

WorkPtr send(TensorList tensors, const Group& group, int64_t to, int64_t tag) {
  Tensors xs = tensors.vec();
  return backend_of(group)->send(xs, static_cast<int>(to), static_cast<int>(tag));
}

WorkPtr recv(TensorList tensors, const Group& group, int64_t from, int64_t tag) {
  Tensors xs = tensors.vec();
  return backend_of(group)->recv(xs, static_cast<int>(from), static_cast<int>(tag));
}

WorkPtr recv_any_source(TensorList tensors, const Group& group, int64_t tag) {
  Tensors xs = tensors.vec();
  return backend_of(group)->recvAnysource(xs, static_cast<int>(tag));
}

TORCH_LIBRARY_IMPL(c10d, XLA, m) {
  m.impl("broadcast_", broadcast);
  m.impl("allreduce_", allreduce);
  m.impl("allreduce_coalesced_", allreduce_coalesced);
  m.impl("reduce_", reduce);
  m.impl("allgather_", allgather);
  m.impl("_allgather_base_", allgather_base);
  m.impl("allgather_coalesced_", allgather_coalesced);
  m.impl("allgather_into_tensor_coalesced_", allgather_into_tensor_coalesced);
  m.impl("reduce_scatter_", reduce_scatter);
  m.impl("_reduce_scatter_base_", reduce_scatter_base);
  m.impl("reduce_scatter_tensor_coalesced_", reduce_scatter_tensor_coalesced);
  m.impl("gather_", gather);
  m.impl("scatter_", scatter);
  m.impl("alltoall_", alltoall);
  m.impl("alltoall_base_", alltoall_base);
  m.impl("barrier", barrier);
  m.impl("monitored_barrier_", monitored_barrier);
  m.impl("send", send);
  m.impl("recv_", recv);
  m.impl("recv_any_source_", recv_any_source);
}

Group made(const Group& host, std::vector<int64_t> members, int64_t timeout) {
  return make_process_group(host, std::move(members), std::chrono::milliseconds(timeout));
}

TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  m.def(
      "make_process_group(__torch__.torch.classes.c10d.ProcessGroup host, int[] members, "
      "int timeout) -> __torch__.torch.classes.c10d.ProcessGroup",
      made);
}

}  // namespace
}  // namespace torch_xla::dispatch
