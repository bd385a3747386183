// TracedFunction, a function of tensors that was recorded once. A call of it records a single node,
// of which the function's calls are the expansion, so that programs, donation and failures are
// those of any other call.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "dispatch/record/function_trace.h"
#include "dispatch/record/launching.h"
#include "dispatch/record/places.h"
#include "lazy/tensor.h"

namespace torch_xla::dispatch {

class TracedFunction {
 public:
  // Runs `body` on stand-ins of the arguments, tensors of the same geometries that share storages
  // as the arguments do, and keeps what it records. Throws what `body` throws, and where the
  // function cannot be kept: it needs values, runs calls on the host, writes other tensors than its
  // arguments, returns a tensor that is not of xla, draws from a generator of its own, or changes a
  // tensor's geometry. What else it reads is read once, by the first call.
  static std::unique_ptr<TracedFunction> trace(const Tensors& arguments,
                                               c10::function_ref<Tensors(const Tensors&)> body);

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

  // Returns what functions that compute the same share.
  std::string key() const { return signature_.defined() ? signature_->key.hex() : ""; }

 private:
  class Tracer;

  Taken arguments_;
  // What the function reads beside its arguments; operands after the storages.
  std::vector<c10::intrusive_ptr<lazy::Storage>> constants_;
  // Of the call's results, in order: the arguments' storages that are written, then new storages.
  std::vector<size_t> written_;
  std::vector<size_t> offered_;  // storages of arguments, by hand (executor/run/offers.h)
  std::vector<const lazy::Geometry*> made_;
  Writes writes_;
  std::vector<Given> results_;
  c10::intrusive_ptr<const lazy::Signature> signature_;  // undefined where nothing is computed
  Draws draws_;
};

}  // namespace torch_xla::dispatch
