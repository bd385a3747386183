#include "executor/run/doing.h"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "util/lock_order.h"

namespace torch_xla::executor {
namespace {

using Clock = std::chrono::steady_clock;

struct Notes {
  util::Mutex mutex;
  uint64_t last = 0;
  std::map<uint64_t, Note> all;
};

Notes& notes() {
  static auto& it = *new Notes;  // threads may work while the process ends
  return it;
}

uint64_t add(Note note) {
  const std::lock_guard lock(notes().mutex);
  notes().all.emplace(++notes().last, std::move(note));
  return notes().last;
}

std::atomic<Clock::rep> launched = 0;

}  // namespace

Doing::Doing(Note note) : number_(add(std::move(note))) {}

Doing::~Doing() {
  const std::lock_guard lock(notes().mutex);
  notes().all.erase(number_);
}

std::vector<Note> doing() {
  const std::lock_guard lock(notes().mutex);
  std::vector<Note> all;
  for (const auto& [number, note] : notes().all) all.push_back(note);
  return all;
}

void note_launch() {
  launched.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
}

double seconds_since_launch() {
  const Clock::rep then = launched.load(std::memory_order_relaxed);
  if (then == 0) return -1;
  const std::chrono::duration<double> since =
      Clock::now().time_since_epoch() - Clock::duration(then);
  return since.count();
}

}  // namespace torch_xla::executor
