// Launching says when the calls of one graph of torch.compile run. Graphs whose results are read
// run at once. The forward and the backward pass of a training step wait for what follows, so that
// a step is one program, as it is where nothing is compiled by torch.compile.
#pragma once

#include <cstdint>

namespace torch_xla::dispatch {

// The part of a training step that a graph is.
enum class StepPart : uint8_t { None, Forward, Backward };

class Launching {
 public:
  explicit Launching(StepPart part) : part_(part) {}

  // Called before a call is recorded: launches what waits on the device where the call begins
  // another step. It does if a backward pass is among what waits, and it is a forward pass; or if
  // the graph has been called in this step, so that what waits does not grow.
  void before_call(int device);
  // Returns whether a call is launched as soon as it is recorded.
  bool at_once() const;

 private:
  static constexpr uint64_t kNever = ~uint64_t{0};

  const StepPart part_;
  uint64_t last_step_ = kNever;  // the step of the last call. Guarded by GraphLock.
};

}  // namespace torch_xla::dispatch
