// The time of a run, for the metric ExecuteTime, on several devices ExecuteReplicatedTime, of a
// call in eager mode EagerOpExecuteTime.
#pragma once

#include <chrono>

#include "debug/metrics.h"

namespace torch_xla::executor {

// From the launch of a run, or the end of the one before it on its device, until its results are
// there.
class RunTime {
 public:
  // It is launched now.
  RunTime(int device, bool is_eager);
  // Called when the run has ended, or could not be launched.
  void end();

  // Waits until all runs that were launched on a device have their times. They have ended, so this
  // takes no time to speak of.
  static void await_all(int device);
  // Returns the seconds since the last launch; negative where none was.
  static double seconds_since_launch();

 private:
  using Clock = std::chrono::steady_clock;

  const int device_;
  const debug::OpenSample sample_;
  const Clock::time_point launched_ = Clock::now();
};

}  // namespace torch_xla::executor
