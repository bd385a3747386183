// Tells a terminal of compilations that take long.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "executor/program.h"
#include "util/lock_order.h"

namespace torch_xla::executor {

// Called from a thread of its own, some times a second, once a compilation has taken three seconds;
// the last time when it has ended. Set once, at import.
using ProgressReporter = std::function<void(const std::string& what, double seconds, bool ended)>;
void set_progress_reporter(ProgressReporter reporter);

// Lives while a program is compiled, on a thread that holds neither lock.
class CompileProgress {
 public:
  explicit CompileProgress(const Program& program);
  ~CompileProgress();
  CompileProgress(const CompileProgress&) = delete;
  CompileProgress& operator=(const CompileProgress&) = delete;

 private:
  void tell(const std::string& what);

  util::Mutex mutex_;
  std::condition_variable_any changed_;
  bool ended_ = false;
  std::jthread thread_;
};

}  // namespace torch_xla::executor
