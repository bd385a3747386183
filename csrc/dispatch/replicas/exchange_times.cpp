#include "dispatch/replicas/exchange_times.h"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <tuple>

#include "util/diagnostics.h"
#include "util/fork_mutex.h"

namespace torch_xla::dispatch {
namespace {

struct Taken {
  uint64_t count = 0;
  double seconds = 0;
};

struct Times {
  util::ForkMutex mutex;
  std::map<std::tuple<std::string, std::string, std::vector<int64_t>>, Taken> all;
};

Times& times() {
  static auto& all = *new Times;
  return all;
}

}  // namespace

void note_exchange_time(const Told& exchange, const std::vector<int64_t>& members,
                        std::chrono::duration<double> taken) {
  constexpr size_t kMost = 4096;
  if (!util::kDiagnostics) return;
  const std::lock_guard lock(times().mutex);
  std::tuple key(exchange.text, exchange.line, members);
  if (times().all.size() >= kMost && !times().all.contains(key)) return;
  Taken& all = times().all[std::move(key)];
  ++all.count;
  all.seconds += taken.count();
}

std::vector<ExchangeTime> exchange_times(bool clear) {
  std::vector<ExchangeTime> found;
  const std::lock_guard lock(times().mutex);
  for (const auto& [key, taken] : times().all) {
    const auto& [what, line, members] = key;
    found.push_back({what, line, members, taken.count, taken.seconds});
  }
  if (clear) times().all.clear();
  std::ranges::sort(found, std::greater(), &ExchangeTime::seconds);
  return found;
}

}  // namespace torch_xla::dispatch
