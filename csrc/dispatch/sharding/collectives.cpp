// The operators of ops/collectives.h.
#include "ops/collectives.h"

#include <ATen/ops/new_empty.h>

#include "dispatch/calls/own_operator.h"
#include "dispatch/sharding/collectives.h"
#include "util/error.h"

namespace torch_xla::dispatch {

at::Tensor shape_given(const at::Tensor& x, std::string_view what, at::IntArrayRef dims,
                       int64_t size) {
  c10::SymDimVector sizes(x.sym_sizes().begin(), x.sym_sizes().end());
  const auto along = [&](int64_t dim) -> c10::SymInt& {
    TXLA_CHECK_KIND(util::ErrorKind::Index, dim >= 0 && dim < x.dim(), what,
                    ": expected a dimension from 0 to ", x.dim() - 1, ", got ", dim, ".");
    return sizes[static_cast<size_t>(dim)];
  };
  const auto divide = [&](c10::SymInt& parts) {
    TXLA_CHECK_KIND(util::ErrorKind::Value, size > 0 && parts % size == 0, what,
                    ": expected a dimension that the ", size, " members of a group divide, got ",
                    parts, ".");
    parts = parts / size;
  };
  if (what == "reduce_scatter" || what == "all_to_all") divide(along(dims[0]));
  if (what == "all_gather" || what == "all_to_all") along(dims.back()) *= size;
  return x.new_empty_symint(sizes);
}

namespace {

at::Tensor same_given(const at::Tensor& self, c10::string_view /*reduction*/, double /*scale*/,
                      c10::IntArrayRef /*members*/, int64_t /*size*/, bool /*replicas*/) {
  return shape_given(self, "all_reduce", {}, 1);
}

at::Tensor scattered(const at::Tensor& self, c10::string_view /*reduction*/, double /*scale*/,
                     int64_t dim, c10::IntArrayRef /*members*/, int64_t size, bool /*replicas*/) {
  return shape_given(self, "reduce_scatter", dim, size);
}

at::Tensor gathered(const at::Tensor& self, int64_t dim, c10::IntArrayRef /*members*/, int64_t size,
                    bool /*replicas*/) {
  return shape_given(self, "all_gather", dim, size);
}

at::Tensor exchanged(const at::Tensor& self, int64_t split_dim, int64_t join_dim,
                     c10::IntArrayRef /*members*/, int64_t size, bool /*replicas*/) {
  return shape_given(self, "all_to_all", {split_dim, join_dim}, size);
}

at::Tensor sent(const at::Tensor& self, c10::IntArrayRef /*members*/, int64_t /*size*/,
                bool /*replicas*/) {
  return shape_given(self, "collective_broadcast", {}, 1);
}

at::Tensor permuted_by_pairs(const at::Tensor& self, c10::IntArrayRef /*members*/,
                             bool /*replicas*/) {
  return shape_given(self, "collective_permute", {}, 1);
}

const OwnOperator all_reduce(
    "all_reduce(Tensor self, str reduction, float scale, int[] members, int size, "
    "bool replicas=False) -> Tensor",
    same_given, ops::rules::all_reduce);
const OwnOperator reduce_scatter(
    "reduce_scatter(Tensor self, str reduction, float scale, int dim, int[] members, int size, "
    "bool replicas=False) -> Tensor",
    scattered, ops::rules::reduce_scatter);
const OwnOperator all_gather(
    "all_gather(Tensor self, int dim, int[] members, int size, bool replicas=False) -> Tensor",
    gathered, ops::rules::all_gather);
const OwnOperator all_to_all(
    "all_to_all(Tensor self, int split_dim, int join_dim, int[] members, int size, "
    "bool replicas=False) -> Tensor",
    exchanged, ops::rules::all_to_all);
const OwnOperator collective_broadcast(
    "collective_broadcast(Tensor self, int[] members, int size, bool replicas=False) -> Tensor",
    sent, ops::rules::collective_broadcast);
const OwnOperator collective_permute(
    "collective_permute(Tensor self, int[] members, bool replicas=False) -> Tensor",
    permuted_by_pairs, ops::rules::collective_permute);

}  // namespace
}  // namespace torch_xla::dispatch
