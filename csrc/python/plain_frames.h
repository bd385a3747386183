// PlainFrames, for Python that C++ calls while a function of torch.compile may be running.
#pragma once

#include <pybind11/pybind11.h>

namespace torch_xla::python {

// While it lives, torch.compile does not look at the frames that this thread runs: Python that an
// operator calls runs as it is. Needs Python's lock.
class PlainFrames {
 public:
  PlainFrames() : before_(set()(pybind11::none())) {}
  ~PlainFrames() { set()(before_); }
  PlainFrames(const PlainFrames&) = delete;
  PlainFrames& operator=(const PlainFrames&) = delete;

 private:
  static pybind11::object set() {
    return pybind11::module_::import("torch._C._dynamo.eval_frame").attr("set_eval_frame");
  }
  pybind11::object before_;
};

}  // namespace torch_xla::python
