// Joint, a function of tensors and its backward pass: both are recorded in one run of its code, and
// each is called as one node.
#pragma once

#include <vector>

#include "dispatch/record/control_flow.h"
#include "dispatch/record/function_trace.h"

namespace torch_xla::dispatch {

class Joint {
 public:
  // Gets what the function captured, and the gradients of those results that require one; returns
  // gradients.
  using Backward = c10::function_ref<Tensors(const Tensors& captured, const Tensors& gradients)>;

  // Runs both on stand-ins of the inputs. `recomputes` says that the backward pass computes anew
  // what is made of kept values by elementwise operations alone. Throws what they throw, and as
  // TracedFunction::trace does.
  Joint(const Tensors& inputs, Body forward, Backward backward, bool recomputes);

  // The tensors that the function reads beside its inputs: further inputs.
  const Tensors& captured() const { return captured_; }

  // A value that the backward pass takes, in order: an input, or a result of the forward call
  // (those that are kept come after the function's own).
  struct Kept {
    bool is_input;
    size_t index;
  };
  const std::vector<Kept>& kept() const { return kept_; }

  // Returns the results and what is kept. `inputs`: all of them.
  Tensors forward(const Tensors& inputs) const { return forward_.call(inputs, device_); }
  Tensors backward(const Tensors& kept_and_gradients) const {
    return backward_.call(kept_and_gradients, device_);
  }

 private:
  // A recorded function whose parameters are given tensors, or constants.
  struct Part {
    c10::intrusive_ptr<const lazy::Signature> signature;
    Draws draws;
    // Of each parameter: the place of the given tensor, or of a constant after those.
    std::vector<size_t> places;
    std::vector<c10::intrusive_ptr<lazy::Storage>> constants;
    std::vector<const lazy::Geometry*> results;
    size_t num_given = 0;

    Tensors call(const Tensors& given, int device) const;
  };

  int device_;
  Tensors captured_;
  Part forward_, backward_;
  std::vector<Kept> kept_;
};

}  // namespace torch_xla::dispatch
