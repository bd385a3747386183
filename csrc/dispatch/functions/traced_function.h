// TracedFunction, a function of tensors that may write its arguments and give views of them: a
// graph of torch.compile. It was recorded once.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dispatch/functions/launching.h"
#include "dispatch/functions/recorded_function.h"
#include "dispatch/views/aliasing.h"

namespace torch_xla::dispatch {

class TracedFunction {
 public:
  // Runs `body` on placeholders of the arguments, tensors of the same geometries that share
  // storages as the arguments do, and keeps what it records. Throws what `body` throws, and where
  // the function cannot be kept: it needs values, runs calls on the host, writes other tensors than
  // its arguments, returns a tensor that is not of xla, draws from a generator of its own, or
  // changes a tensor's geometry. What else it reads is read once, by the first call.
  static std::unique_ptr<TracedFunction> trace(const Tensors& arguments, Body body);

  TracedFunction() = default;
  // Drops the programs that call the function, unless an equal one is alive.
  ~TracedFunction();
  TracedFunction(const TracedFunction&) = delete;
  TracedFunction& operator=(const TracedFunction&) = delete;

  // Returns whether tensors have the geometries and share storages as those that were traced.
  bool fits(const Tensors& arguments) const { return arguments_.fits(arguments); }
  // Records a call of arguments that fit and returns its results. Tensors that the function writes
  // have their new values; an undefined result stays undefined. `launching` says when it runs, but
  // in a region of torch_xla.compile and where another function is recorded.
  Tensors call(const Tensors& arguments, Launching& launching) const;

  // Returns a text that functions that compute the same share.
  std::string key() const { return function_ ? function_.signature().key.hex() : ""; }

 private:
  class Tracer;

  ArgumentSpec arguments_;
  Callable function_;  // of the arguments' storages; null where nothing is computed
  // The results of a call, in order: the arguments' storages that are written, then new storages.
  std::vector<size_t> written_;
  std::vector<size_t> offered_;  // storages of arguments, by hand (executor/offers.h)
  std::vector<const lazy::Geometry*> made_;
  Writes writes_;
  ResultSpecs results_;
};

}  // namespace torch_xla::dispatch
