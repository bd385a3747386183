// Turns boolean masks among indices into integer indices, since the number of true elements is a
// value. A write under one mask needs no count and stays in the graph.
#pragma once

#include <memory>

#include "dispatch/record/recorder.h"

namespace torch_xla::dispatch {

class MaskIndexKernel final : public c10::OperatorKernel {
 public:
  explicit MaskIndexKernel(std::unique_ptr<Recorder> recorder) : recorder_(std::move(recorder)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace torch_xla::dispatch
