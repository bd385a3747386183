// Runs that a device has not finished, and the failure that nobody was told of yet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "pjrt/client.h"

namespace torch_xla::executor {

// The exception for a plugin's error: out of memory has its own type in Python.
[[noreturn]] void fail(const pjrt::Error& error, const std::string& context = "");

// A moment in a device's work: reached when all runs that were launched before it have ended.
class Mark {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Mark(size_t runs) : left_(runs) {}
  void run_ended();

  bool reached() const;
  void wait() const;
  Clock::time_point time() const;  // of a mark that was reached

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  size_t left_;
  Clock::time_point time_;
};

class InFlight {
 public:
  static InFlight& of(int device);

  using Arrays = std::vector<std::shared_ptr<pjrt::Array>>;

  // `done` is the end, on each real device, of a run launched at `line` of the user's program (may
  // be empty). `donated` is kept until then: PJRT's CPU client waits for the run before it lets go
  // of a buffer that the run takes over.
  void add(std::vector<pjrt::Event> done, std::string line, Arrays donated);
  // Throws if a run has failed since the last report: each failure is reported once.
  void report();
  // Waits for all runs, then reports.
  void wait();
  // Whether there is nothing to wait for.
  bool idle();
  std::shared_ptr<const Mark> mark();
  // Results of a failed run cannot be read: throws the run's failure if it was not reported yet,
  // otherwise `error`.
  [[noreturn]] void fail_read(const pjrt::Error& error);

 private:
  struct Run {
    std::vector<pjrt::Event> done;
    std::string line;
    Arrays donated;
  };
  // Keeps the failure of a finished run, if it is the first.
  void finish(const Run& run);
  void finish_ready_runs();

  std::mutex mutex_;                             // never held while a device works
  std::deque<std::shared_ptr<const Run>> runs_;  // in the order of launch
  std::exception_ptr failure_;
};

}  // namespace torch_xla::executor
