// Records operators that write a list of tensors. PyTorch goes through the list one tensor at a
// time, so tensors that share memory see each other's writes.
#pragma once

#include <memory>
#include <vector>

#include "dispatch/record/recorder.h"

namespace torch_xla::dispatch {

// Returns whether the operator writes a list and can also be called for each element.
bool writes_list(const c10::OperatorHandle& op);

// Records the whole list as one node unless its tensors overlap; then element by element.
class ListWriteKernel final : public c10::OperatorKernel {
 public:
  explicit ListWriteKernel(std::unique_ptr<Recorder> recorder) : recorder_(std::move(recorder)) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                  torch::jit::Stack* stack);

 private:
  std::unique_ptr<Recorder> recorder_;
};

}  // namespace torch_xla::dispatch
