// A sample of a metric that takes a while: it counts from when it is made, and has its value once
// that is known.
#pragma once

#include <cstdint>
#include <string_view>

namespace torch_xla::debug {

struct MetricState;

class OpenSample {
 public:
  // `metric` is the name of one that lives.
  explicit OpenSample(std::string_view metric);
  // Called once, from any thread. Where the metric was cleared meanwhile, the value is left out.
  void end(double value) const;

 private:
  MetricState* state_;
  std::uint64_t times_cleared_;
};

}  // namespace torch_xla::debug
