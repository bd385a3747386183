// Recorded exchanges among replicas. `members` are those of all groups, one group of `size` after
// the other; without any, all replicas of the job are one group. Reductions have StableHLO's names:
// add, multiply, minimum, maximum, and, or, xor. Results are new tensors, in the dtypes of what is
// given. Tensors of one call go in one exchange.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "dispatch/record/recorder.h"

namespace torch_xla::dispatch {

std::vector<at::Tensor> all_reduce(at::TensorList xs, std::string_view reduction, double scale,
                                   at::IntArrayRef members, int64_t size);
std::vector<at::Tensor> reduce_scatter(at::TensorList xs, std::string_view reduction, double scale,
                                       int64_t dim, at::IntArrayRef members, int64_t size);
std::vector<at::Tensor> all_gather(at::TensorList xs, int64_t dim, at::IntArrayRef members,
                                   int64_t size);
at::Tensor all_to_all(const at::Tensor& x, int64_t split_dim, int64_t join_dim,
                      at::IntArrayRef members, int64_t size);
// `root` is a place in each group.
std::vector<at::Tensor> collective_broadcast(at::TensorList xs, int64_t root,
                                             at::IntArrayRef members, int64_t size);
// Rows go to the members of one group, and theirs come, so many to and from each.
at::Tensor all_to_all_rows(const at::Tensor& x, at::IntArrayRef sends, at::IntArrayRef gets,
                           at::IntArrayRef members);
// Between two members of one group, by their places in it. Who sends waits for nobody; what one
// sends to another under a tag comes in its order.
void send_to(const at::Tensor& x, int64_t place, int64_t tag, at::IntArrayRef members);
at::Tensor receive_from(const at::Tensor& like, int64_t place, int64_t tag,
                        at::IntArrayRef members);
// The CPU kernel that programs call where the plugin does not exchange; arguments as those of the
// recorded call. Into the results; the last is the next order.
void exchange_on_host(at::TensorList xs, const at::Tensor& order, c10::string_view what,
                      c10::string_view reduction, double scale, at::IntArrayRef dims,
                      at::IntArrayRef members, int64_t size, at::TensorList out);
// Waits until all that was sent so has come.
void finish_sends();
// Pairs of replicas: who sends, who gets. Zeros where nothing comes.
at::Tensor collective_permute(const at::Tensor& x, at::IntArrayRef pairs);

// The kernel of an operator of ops/collectives.h, which is of devices or of replicas.
class CollectiveKernel final : public c10::OperatorKernel {
 public:
  explicit CollectiveKernel(std::unique_ptr<Recorder> recorder) : recorder_(std::move(recorder)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace torch_xla::dispatch
