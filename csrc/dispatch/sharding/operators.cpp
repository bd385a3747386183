#include "dispatch/sharding/operators.h"

#include <string>
#include <vector>

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/new_empty.h>
#include <torch/library.h>

#include "dispatch/calls/own_operator.h"
#include "dispatch/sharding/mark_sharding.h"
#include "ops/manual_sharding.h"
#include "ops/rules.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

at::Tensor same_shape(const at::Tensor& self, c10::string_view /*sharding*/) {
  return at::empty_like(self);
}

const OwnOperator sharding_constraint("sharding_constraint(Tensor self, str sharding) -> Tensor",
                                      same_shape, ops::rules::sharding_constraint);

enum class Sizes { DividedByParts, TimesParts };

at::Tensor resized(const at::Tensor& self, c10::string_view sharding, Sizes how, const char* who) {
  const spmd::Sharding* s = spmd::Sharding::read(std::string(sharding));
  c10::SymDimVector sizes(self.sym_sizes().begin(), self.sym_sizes().end());
  TXLA_CHECK_KIND(util::ErrorKind::Value, !s->is_manual && s->dims.size() == sizes.size(), who,
                  ": expected a sharding of the ", sizes.size(), " dimensions of the tensor, got ",
                  s->gspmd(), ".");
  const std::vector<int64_t> parts = s->parts();
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (how == Sizes::TimesParts) {
      sizes[i] = sizes[i] * parts[i];
      continue;
    }
    TXLA_CHECK_KIND(util::ErrorKind::Value, sizes[i] % parts[i] == 0, who,
                    ": expected sizes that the numbers of parts ", at::IntArrayRef(parts),
                    " divide, got ", self.sym_sizes(), ".");
    sizes[i] = sizes[i] / parts[i];
  }
  return self.new_empty_symint(sizes);
}

at::Tensor part_of(const at::Tensor& self, c10::string_view sharding) {
  at::Tensor part = resized(self, sharding, Sizes::DividedByParts, "full_to_shard");
  // Makes any_manual() true before there is a call.
  spmd::Sharding::manual(spmd::Sharding::read(std::string(sharding))->mesh,
                         static_cast<size_t>(self.dim()));
  return part;
}

at::Tensor whole_of(const at::Tensor& self, c10::string_view sharding, bool /*sum*/) {
  return resized(self, sharding, Sizes::TimesParts, "shard_to_full");
}

const OwnOperator to_shard("full_to_shard(Tensor self, str sharding) -> Tensor", part_of,
                           ops::rules::full_to_shard);
const OwnOperator to_full("shard_to_full(Tensor self, str sharding, bool sum=False) -> Tensor",
                          whole_of, ops::rules::shard_to_full);
const OwnOperator to_manual("mark_manual(Tensor self, str sharding) -> Tensor", same_shape,
                            ops::rules::mark_manual);

at::Tensor& mark_sharding_(at::Tensor& self, c10::string_view sharding) {
  mark_sharding(self, spmd::Sharding::read(std::string(sharding)));
  return self;
}

at::Tensor& same_tensor(at::Tensor& self, c10::string_view /*sharding*/) { return self; }

// In a graph that nothing writes in, the tensor is another from here on. Its history is the same.
at::Tensor& mark_sharding_functional(at::Tensor& self, c10::string_view sharding) {
  namespace functional = at::functionalization::impl;
  TXLA_CHECK(functional::isFunctionalTensor(self),
             "mark_sharding_: expected a tensor that PyTorch's functionalization wraps.");
  functional::sync(self);
  at::Tensor split;
  {
    const at::AutoDispatchSkipFunctionalize below;
    split = sharding_constraint(functional::from_functional_tensor(self), sharding);
  }
  functional::replace_(self, split);
  functional::commit_update(self);
  functional::sync(self);
  return self;
}

}  // namespace

at::Tensor full_to_shard(const at::Tensor& self, const spmd::Sharding& sharding) {
  return to_shard(self, sharding.text);
}

at::Tensor shard_to_full(const at::Tensor& self, const spmd::Sharding& sharding) {
  return to_full(self, sharding.text, false);
}

// mark_sharding() as graphs of torch.compile hold it.
TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  m.def("mark_sharding_(Tensor(a!) self, str sharding) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(torch_xla, XLA, m) { m.impl("mark_sharding_", mark_sharding_); }
TORCH_LIBRARY_IMPL(torch_xla, Meta, m) { m.impl("mark_sharding_", same_tensor); }
TORCH_LIBRARY_IMPL(torch_xla, Functionalize, m) {
  m.impl("mark_sharding_", mark_sharding_functional);
}
TORCH_LIBRARY_IMPL(torch_xla, Autograd, m) {
  m.impl("mark_sharding_", torch::CppFunction::makeFallthrough());
}

}  // namespace torch_xla::dispatch
