// The kernel of view operators: the result shares the storage and remembers how it is read.
#pragma once

#include <memory>
#include <unordered_map>

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include "dispatch/meta.h"
#include "dispatch/plan.h"
#include "lazy/tensor.h"

namespace torch_xla::dispatch {

class ViewKernel final : public c10::OperatorKernel {
 public:
  explicit ViewKernel(const c10::OperatorHandle& op);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  struct Entry {
    c10::intrusive_ptr<const lazy::Signature> signature;
    const lazy::Geometry* geometry;
    int64_t offset;  // relative to the input's
  };
  Entry make_entry(const lazy::TensorImpl& self, const torch::jit::Stack& stack, size_t base,
                   const util::Hash128& key) const;

  std::shared_ptr<const lazy::Operator> op_;
  MetaKernel meta_;
  size_t num_arguments_;
  bool is_identity_;  // alias, detach: no step is needed
  uint64_t op_hash_;
  std::unordered_map<util::Hash128, Entry, util::Hash128Hasher> memo_;
};

// as_strided starts again at the storage: sizes and strides are those of physical memory.
at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> storage_offset);

// Registers every view operator, their in-place forms and set_.
void register_views(torch::Library& library);

}  // namespace torch_xla::dispatch
