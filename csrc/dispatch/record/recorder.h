// Recorder, the boxed kernel of every recorded operator: one object per ATen overload, driven by
// its schema. A call that was seen before costs one hash, one table look-up and the allocation of
// its results.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/stack.h>

#include "debug/metrics.h"
#include "dispatch/calls/meta.h"
#include "dispatch/calls/plan.h"
#include "dispatch/judge/converted_numbers.h"
#include "dispatch/judge/cpu_kernel.h"
#include "dispatch/judge/written_memory.h"
#include "dispatch/record/decompose.h"
#include "lazy/signature.h"
#include "lazy/tensor.h"
#include "util/memo.h"

namespace torch_xla::dispatch {

class Recorder final : public c10::OperatorKernel {
 public:
  Recorder(const c10::OperatorHandle& op, std::unique_ptr<OperatorPlan> plan);
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

  const OperatorPlan& plan() const { return *plan_; }
  // The results that a call returns, without arguments that it returns.
  using Results = c10::SmallVector<c10::IValue, 4>;
  // Records the call whose arguments, which begin at `base`, stay on the stack. Returns null, or
  // else what carries the call out instead: it takes the arguments from the stack, as a boxed
  // kernel does.
  using Instead = std::function<void(torch::jit::Stack*)>;
  Instead record(torch::jit::Stack& stack, size_t base, Results& results);

 private:
  // A distinct call, as an earlier one has shown it.
  struct KnownCall {
    Route route = Route::Record;
    c10::intrusive_ptr<const lazy::Signature> signature;
    // Per functional result: where its tensors start among the node's outputs, and how many.
    std::vector<std::pair<uint32_t, uint32_t>> outputs;
  };
  struct Scan;

  KnownCall make_known(const torch::jit::Stack& stack, size_t base, int device) const;
  std::optional<torch::jit::Stack> results_without_memory(const torch::jit::Stack& stack,
                                                          size_t base) const;
  torch::jit::Stack meta_arguments(const torch::jit::Stack& stack, size_t base, size_t count) const;
  // Some operators convert their result to the dtype of out= and some refuse to: asks PyTorch's
  // kernels of the out= form.
  void check_out_dtypes(const KnownCall& entry, const torch::jit::Stack& stack, size_t base) const;
  bool overwrites_all_results() const;
  void check_lists(const torch::jit::Stack& stack, size_t base) const;
  void check_shapes_written(const torch::jit::Stack& stack, size_t base,
                            const torch::jit::Stack& results) const;
  void write_outputs(const KnownCall& entry, const c10::intrusive_ptr<lazy::Node>& node, int device,
                     torch::jit::Stack& stack, size_t base) const;

  // Returns whether the call makes a tensor on another device than that of its first argument.
  bool is_for_another_device(const torch::jit::Stack& stack, size_t base) const;

  void make_results(const KnownCall& entry, const c10::intrusive_ptr<lazy::Node>& node, int device,
                    Results& results) const;

  const c10::OperatorHandle op_;
  std::unique_ptr<OperatorPlan> plan_;
  MetaKernel meta_;
  CpuKernel cpu_kernel_;
  // PyTorch's Meta kernels of the form in place and of the out= form, which check what is written.
  std::optional<MetaKernel> in_place_meta_, out_meta_;
  // True where no kernel of PyTorch's above this one counts the versions of a written list.
  bool counts_list_writes_ = false;
  const ops::Traits& traits_;
  const bool is_constant_;
  const bool is_made_like_;                   // its first argument: zeros_like and its kin
  const std::optional<int> device_argument_;  // of what is made like its first argument
  WrittenMemory written_memory_;
  ConvertedNumbers converted_numbers_;
  debug::Counter counter_;
  util::Memo<std::shared_ptr<const KnownCall>, 16384> memo_;
};

// Returns the value of a 0-dim CPU tensor.
lazy::Number number_of(const at::Tensor& tensor, lazy::NumberKind* kind);

}  // namespace torch_xla::dispatch
