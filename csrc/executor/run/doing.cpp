#include "executor/run/doing.h"

#include <map>
#include <mutex>
#include <utility>

#include "util/lock_order.h"

namespace torch_xla::executor {
namespace {

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

}  // namespace torch_xla::executor
