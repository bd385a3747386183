// Joint, a function of tensors and its backward pass: both are recorded in one run of its code, and
// each is called as one node.
#pragma once

#include <vector>

#include "dispatch/functions/recorded_function.h"

namespace torch_xla::dispatch {

class Joint {
 public:
  // Gets the tensors that the function has captured, and the gradients of those results that
  // require one; returns gradients.
  using Backward = c10::function_ref<Tensors(const Tensors& captured, const Tensors& gradients)>;

  // Runs both on placeholders of the inputs. `recomputes` says that the backward pass computes anew
  // what is made of residuals by elementwise operations alone. Throws what they throw, and as
  // TracedFunction::trace does.
  Joint(const Tensors& inputs, Body forward, Backward backward, bool recomputes);

  // The tensors that the function reads beside its inputs: further inputs.
  const Tensors& captured() const { return captured_; }

  // A value that the backward pass takes, in order: an input, or a result of the forward call
  // (residuals come after the function's own results).
  struct Residual {
    bool is_input;
    size_t index;
  };
  const std::vector<Residual>& residuals() const { return residuals_; }

  // Returns the results and the residuals that are results. `inputs`: all of them.
  Tensors forward(const Tensors& inputs) const { return call(forward_, inputs, forward_results_); }
  Tensors backward(Tensors residuals_and_gradients) const;

 private:
  Tensors call(const Callable& function, const Tensors& given, const Geometries& results) const;

  int device_;
  Tensors captured_;
  Callable forward_, backward_;  // the second takes gradients, then residuals
  Geometries forward_results_, backward_results_;
  std::vector<Residual> residuals_;
};

}  // namespace torch_xla::dispatch
