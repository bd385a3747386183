#include "debug/waits.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "lazy/lock.h"
#include "lazy/source.h"
#include "util/diagnostics.h"

namespace torch_xla::debug {
namespace {

struct Entry {
  lazy::Source place;
  uint64_t count = 0;
  double seconds = 0;
};

// A place of the program, and why it waits. The entry keeps the code alive, so no other has its
// address. Guarded by the GraphLock.
using Key = std::tuple<const lazy::Code*, int32_t, std::string_view>;

std::map<Key, Entry>& entries() {
  static auto& all = *new std::map<Key, Entry>;
  return all;
}

// A copy of a text that stays: an operator may be taken back, and its name with it.
std::string_view kept(std::string_view text) {
  static auto& all = *new std::set<std::string, std::less<>>;
  const auto it = all.find(text);
  return it != all.end() ? *it : *all.emplace(text).first;
}

thread_local int depth = 0;
thread_local double paused = 0;  // of the outermost scope

}  // namespace

WaitScope::WaitScope(std::string_view why) : why_(why), start_(Clock::now()), span_(why) {
  if (depth++ == 0) paused = 0;
}

WaitScope::~WaitScope() {
  constexpr size_t kMost = 4096;
  if (--depth > 0 || !util::kDiagnostics) return;
  const std::chrono::duration<double> taken = Clock::now() - start_;
  const lazy::GraphLock lock;
  lazy::Source place;
  lazy::take_source(place);
  const Key key = {place.code.get(), place.instruction, kept(why_)};
  if (entries().size() >= kMost && !entries().contains(key)) return;
  Entry& entry = entries()[key];
  entry.place = std::move(place);
  ++entry.count;
  entry.seconds += std::max(0.0, taken.count() - paused);
}

void WaitScope::pause(double seconds) { paused += seconds; }

std::vector<Wait> waits(bool clear) {
  std::map<std::pair<std::string, std::string_view>, Entry> by_line;  // a line may hold several
  {
    const lazy::GraphLock lock;
    for (const auto& [key, entry] : entries()) {
      Entry& line = by_line[{entry.place.str(), std::get<std::string_view>(key)}];
      line.count += entry.count;
      line.seconds += entry.seconds;
    }
    if (clear) entries().clear();
  }
  std::vector<Wait> all;
  for (const auto& [key, entry] : by_line) {
    all.push_back({key.first, std::string(key.second), entry.count, entry.seconds});
  }
  std::ranges::sort(all, std::greater(), &Wait::seconds);
  return all;
}

}  // namespace torch_xla::debug
