// A sample of a metric that takes a while: it counts from when it is made, and has its value once
// that is known.
#pragma once

#include <cstdint>

#include "debug/metrics.h"

namespace torch_xla::debug {

class OpenSample {
 public:
  explicit OpenSample(const Metric& metric);
  // Called once, from any thread. Where the metric was cleared meanwhile, the value is left out.
  void end(double value) const;

 private:
  MetricState* state_;
  std::uint64_t times_cleared_;
};

}  // namespace torch_xla::debug
