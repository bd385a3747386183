// A program that is compiled while those who asked for it go on.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "executor/compile/compile.h"
#include "util/lock_order.h"

namespace torch_xla::executor {

class Compilation {
 public:
  // Begins to make a program. `ended` is called on a thread of its own afterwards. These two are
  // called with the GraphLock.
  static std::shared_ptr<Compilation> start(Unmade unmade, const Cause& cause,
                                            std::function<void()> ended);
  // Returns that of a graph's key, or null.
  static std::shared_ptr<Compilation> find(const util::Hash128& key);
  // Waits until no thread compiles in the background, at the end of a process.
  static void wait_for_all();
  // For tests. Pausing: none begins. Refusing: the program of none can be had, and take() throws
  // Refused.
  enum class Mode : uint8_t { Normal, Pausing, Refusing };
  static void set_mode(Mode mode);
  struct Refused {};

  // The program, without its executables until it is there.
  const Program& program() const { return *unmade_.program; }
  bool ended() const;
  // Returns when the program is there, or cannot be had. Needs no lock, but may be called with the
  // GraphLock.
  void wait();
  // Returns the program once this has ended, and puts it where find_program() finds it. Throws why
  // it cannot be had. The caller holds the GraphLock.
  std::shared_ptr<const Program> take();

 private:
  enum class State : uint8_t { Runs, Made, Failed };

  Cause cause() const { return {.of_run = "", .is_of_line = is_of_line_}; }
  void compile();
  [[noreturn]] void raise(const NotMade& failure) const;

  Unmade unmade_;
  bool is_of_line_ = true;  // Cause::is_of_line
  bool is_kept_ = false;
  std::optional<double> seconds_;
  std::exception_ptr failure_;
  util::Mutex mutex_;
  std::condition_variable_any changed_;
  std::atomic<State> state_ = State::Runs;  // read without the mutex, too
};

}  // namespace torch_xla::executor
