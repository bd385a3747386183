// Counts how long lines of the user's program wait for values: what print, item(), `if tensor` and
// operators on the host cost beside the copy.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "debug/trace.h"

namespace torch_xla::debug {

// While it lives, the calling thread waits. Of several within each other the outermost counts.
class WaitScope {
 public:
  // `why` lives as long as the process.
  explicit WaitScope(std::string_view why);
  ~WaitScope();
  WaitScope(const WaitScope&) = delete;
  WaitScope& operator=(const WaitScope&) = delete;

  // So many seconds of the calling thread were the compiler's.
  static void pause(double seconds);

 private:
  using Clock = std::chrono::steady_clock;

  const std::string_view why_;
  const Clock::time_point start_;
  const Span span_;
};

struct Wait {
  std::string place;  // the user's line; empty where not known
  std::string why;
  uint64_t count;
  double seconds;
};

// The longest first; they begin anew where `clear`.
std::vector<Wait> waits(bool clear);

}  // namespace torch_xla::debug
