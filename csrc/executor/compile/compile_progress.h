// Tells a terminal of compilations that take long.
#pragma once

#include <condition_variable>
#include <string>
#include <thread>

#include "executor/program/program.h"
#include "util/lock_order.h"

namespace torch_xla::executor {

// Lives while a program is compiled. Once that has taken three seconds, a thread of its own writes
// to stderr, if that is a terminal. Whoever compiles waits for that thread, and others may wait
// for him with the graph lock; so it runs no Python, whose collector may want that lock.
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
