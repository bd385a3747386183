// Observer is told what becomes of programs and runs. Who watches is no business of the executor's:
// one observer (insight/watchers.h) passes all on.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lazy/node.h"

namespace torch_xla::executor {

struct Cause;
struct Graph;
struct Lowered;
struct Program;

// Where a program comes from that this process has not compiled.
struct Origin {
  std::optional<int64_t> rank = {};  // of the job's process that has compiled it; else the disk
  double seconds = 0;                // that taking it has needed
  double waited = 0;                 // seconds before, for that process
};

class Observer {
 public:
  virtual ~Observer() = default;

  // A program: the compiler begins with it, and has made it; or it was there. Then it is kept,
  // with the seconds that the compiler took, or none. Called without the GraphLock.
  virtual void compiling(const Program&, const Cause&) {}
  virtual void compiled(const Program&, const std::vector<Lowered>&, const Cause&) {}
  virtual void loaded(const Program&, const std::vector<Lowered>&, const Cause&, const Origin&) {}
  virtual void made(const Program&, const Cause&, std::optional<double>) {}
  // All programs are dropped.
  virtual void dropped() {}
  // The compiler refuses a text, or the run of a graph has failed. Returns what its error is to end
  // with.
  virtual std::string failed(const std::string&) { return {}; }
  virtual std::string failed(const Graph&) { return {}; }

  // Tells whether launching(), launched() and report() have a listener.
  virtual bool watches_runs() { return false; }
  // Tells whether a run may wait for its program, which is compiled meanwhile.
  virtual bool may_defer() { return true; }
  // Tells whether each run is awaited, so that its own line fails.
  virtual bool awaits_runs() { return false; }
  // A run may not happen here, or is put off. These, and those below up to report(), are called
  // with the GraphLock.
  virtual void unexpected(const Graph&, const Cause&) {}
  virtual void deferred(const Graph&, const Cause&) {}
  // A run is about to be launched. Returns whether it must leave its inputs as they are.
  virtual bool launching(const Graph&, const Program&, const Cause&) { return false; }
  // It was, and gives these leaves.
  virtual void launched(const std::vector<lazy::Value>&, int) {}
  // The program comes to a barrier, a read or a wait (for all runs of the device): throws what was
  // found in those before.
  virtual void report(int, bool) {}
};

// Returns the one that is told: one that does nothing, until another is set.
Observer& observer();
void set_observer(Observer& observer);
// Returns it where it watches runs, else null.
Observer* observing();

}  // namespace torch_xla::executor
