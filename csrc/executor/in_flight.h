// Keeps the runs that a device has not finished, and the failure that was not reported yet.
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

// Throws a plugin's error; out of memory has its own type in Python.
[[noreturn]] void fail(const pjrt::Error& error, const std::string& context = "");

// Returns how many programs this process has launched, and how often it has read values, so far.
uint64_t runs_and_reads();
void count_run_or_read();

// A point in the order of launches: reached when all runs launched before it have ended.
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

  // Adds a run that was launched at `line` of the user's program (may be empty); `done` has an
  // event per device. `donated` is kept until the run ends: PJRT's CPU client waits for the run
  // before it releases a buffer that the run takes over.
  void add(std::vector<pjrt::Event> done, std::string line, Arrays donated);
  // Throws if a run has failed since the last report. Each failure is reported once.
  void report();
  // Waits for all runs, then reports.
  void wait();
  // Returns whether all runs have ended.
  bool idle();
  std::shared_ptr<const Mark> mark();
  // Called when a result cannot be read. Throws the failure of the run that should have made it, if
  // that was not reported yet, else `error`, with `context`.
  [[noreturn]] void fail_read(const pjrt::Error& error, const std::string& context = "");

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
