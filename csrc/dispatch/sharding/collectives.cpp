// The operators of ops/collectives.h.
#include "ops/collectives.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/new_empty.h>

#include "dispatch/calls/own_operator.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

c10::SymInt& size_at(c10::SymDimVector& sizes, int64_t dim, const char* who) {
  TXLA_CHECK_KIND(util::ErrorKind::Index, dim >= 0 && dim < std::ssize(sizes), who,
                  ": expected a dimension from 0 to ", std::ssize(sizes) - 1, ", got ", dim, ".");
  return sizes[static_cast<size_t>(dim)];
}

void divide(c10::SymInt& size, int64_t count, const char* who) {
  TXLA_CHECK_KIND(util::ErrorKind::Value, count > 0 && size % count == 0, who,
                  ": expected a dimension that the ", count, " members of a group divide, got ",
                  size, ".");
  size = size / count;
}

c10::SymDimVector sizes_of(const at::Tensor& self) {
  return {self.sym_sizes().begin(), self.sym_sizes().end()};
}

at::Tensor reduced(const at::Tensor& self, c10::string_view /*reduction*/, double /*scale*/,
                   c10::IntArrayRef /*members*/, int64_t /*size*/, bool /*replicas*/) {
  return at::empty_like(self);
}

at::Tensor scattered(const at::Tensor& self, c10::string_view /*reduction*/, double /*scale*/,
                     int64_t dim, c10::IntArrayRef /*members*/, int64_t size, bool /*replicas*/) {
  c10::SymDimVector sizes = sizes_of(self);
  divide(size_at(sizes, dim, "reduce_scatter"), size, "reduce_scatter");
  return self.new_empty_symint(sizes);
}

at::Tensor gathered(const at::Tensor& self, int64_t dim, c10::IntArrayRef /*members*/, int64_t size,
                    bool /*replicas*/) {
  c10::SymDimVector sizes = sizes_of(self);
  size_at(sizes, dim, "all_gather") *= size;
  return self.new_empty_symint(sizes);
}

at::Tensor exchanged(const at::Tensor& self, int64_t split_dim, int64_t join_dim,
                     c10::IntArrayRef /*members*/, int64_t size, bool /*replicas*/) {
  c10::SymDimVector sizes = sizes_of(self);
  divide(size_at(sizes, split_dim, "all_to_all"), size, "all_to_all");
  size_at(sizes, join_dim, "all_to_all") *= size;
  return self.new_empty_symint(sizes);
}

at::Tensor sent(const at::Tensor& self, c10::IntArrayRef /*members*/, int64_t /*size*/,
                bool /*replicas*/) {
  return at::empty_like(self);
}

at::Tensor permuted(const at::Tensor& self, c10::IntArrayRef /*members*/, bool /*replicas*/) {
  return at::empty_like(self);
}

const OwnOperator all_reduce(
    "all_reduce(Tensor self, str reduction, float scale, int[] members, int size, "
    "bool replicas=False) -> Tensor",
    reduced, ops::rules::all_reduce);
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
    "collective_permute(Tensor self, int[] members, bool replicas=False) -> Tensor", permuted,
    ops::rules::collective_permute);

}  // namespace
}  // namespace torch_xla::dispatch
