// Keeps the runs that a device has not finished, and the failure that nobody was told of yet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "executor/run/offers.h"
#include "executor/run/undo.h"
#include "lazy/source.h"
#include "pjrt/executable.h"
#include "util/lock_order.h"

namespace torch_xla::executor {

struct Program;

// Throws a plugin's error; out of memory has its own type in Python.
[[noreturn]] void fail(const pjrt::Error& error, const std::string& context = "");

// Throws for a value that a run needs and that is gone.
[[noreturn]] void fail_lost(const pjrt::Array& value);

// Says for an error where the run that failed was launched, if that is known, and what became of
// the tensors that it was to overwrite, of which it had taken over `lost`.
std::string describe_failure(const std::string& line, int64_t lost);

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
  mutable util::Mutex mutex_;
  mutable std::condition_variable_any changed_;
  size_t left_;
  Clock::time_point time_;
};

class InFlight {
 public:
  explicit InFlight(int device) : device_(device) {}
  static InFlight& of(int device);

  using Arrays = std::vector<std::shared_ptr<pjrt::Array>>;

  struct Run {
    std::vector<pjrt::Event> done;  // an event per device
    lazy::Source place;             // in the user's program, which launched it; may be empty
    // Kept until the run ends: PJRT's CPU client waits for the run before it releases a buffer that
    // the run takes over.
    Arrays donated;
    OverwrittenStorages overwritten = {};
    std::vector<GivenAway> given = {};
    std::shared_ptr<const Program> program = nullptr;
  };
  // Adds a run that was launched. Called with the GraphLock.
  void add(Run run);
  // Waits for a run that was not added, and throws its failure, a pjrt::Error.
  static void await(const std::vector<pjrt::Event>& done, const Program& program);
  // Returns the storages to which runs that have not ended give values, and which may go back.
  std::unordered_set<const lazy::Storage*> overwritten();
  struct Failure {
    std::exception_ptr why;           // for the user
    OverwrittenStorages overwritten;  // by the run that failed, and by those behind it
  };
  // Tells whether there is one that was not taken yet.
  bool has_failed();
  // Returns the failure that was not taken yet, after all that was launched behind it has ended.
  // The data of these runs says from then on why it is lost.
  std::optional<Failure> take_failure();
  void await_all();
  // Returns whether all runs have ended.
  bool idle();
  // Returns whether one has not ended, or has failed and that was not taken yet.
  bool may_fail();
  std::shared_ptr<const Mark> mark();

 private:
  using Runs = std::deque<std::shared_ptr<const Run>>;

  // Takes note of the failure of a finished run, if it is the first; from then on keeps all runs.
  void finish(std::shared_ptr<const Run> run);
  // Returns the runs that are done with: what they hold is let go without the mutex.
  Runs finish_ready_runs();

  int device_;
  util::Mutex mutex_;           // never held while a device works
  Runs runs_;                   // in the order of launch
  std::exception_ptr failure_;  // a pjrt::Error
  Runs failed_;                 // the run that failed, and those behind it that have ended
};

}  // namespace torch_xla::executor
