// Looks for NaN in what runs give, where XLA_DEBUG_NANS asks for it: a small program after each
// run, and nobody waits for it.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "executor/insight/kept_runs.h"
#include "lazy/node.h"

namespace torch_xla::executor {

// Called before a launch, with the GraphLock: sees to it that runs are kept while they are watched,
// so that they can be searched.
void keep_for_nans();
// Called with the results of a run, data. The caller holds the GraphLock.
void watch_results(const std::vector<lazy::Value>& results, int device);
// Tells whether report_nans() has something to look at.
bool has_nan_checks();
// Throws what the handler throws where a run since the last call gave NaN, as far as that is known
// by now, or for sure if `wait`. The first is told of: what came after it may stem from it.
void report_nans(int device, bool wait = false);

// While it lives, the calling thread's runs are not watched, nor NaN reported to it: they are those
// of a tool.
class Examining {
 public:
  Examining();
  ~Examining();
  Examining(const Examining&) = delete;
  Examining& operator=(const Examining&) = delete;

 private:
  const bool outer_;
};

// The handler looks for the call that made it, and throws. It is called without locks.
using NanHandler = std::function<void(std::shared_ptr<const KeptRun>)>;
void set_nan_handler(NanHandler handler);

}  // namespace torch_xla::executor
