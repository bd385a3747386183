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

struct Times {
  util::ForkMutex mutex;
  std::map<std::tuple<std::string, std::string, std::vector<int64_t>>, ExchangeTime> all;
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
  ExchangeTime& entry = times().all[std::move(key)];
  ++entry.count;
  entry.seconds += taken.count();
}

std::vector<ExchangeTime> exchange_times(bool clear) {
  std::vector<ExchangeTime> found;
  const std::lock_guard lock(times().mutex);
  for (const auto& [key, entry] : times().all) {
    found.push_back(entry);
    std::tie(found.back().what, found.back().line, found.back().members) = key;
  }
  if (clear) times().all.clear();
  std::ranges::sort(found, std::greater(), &ExchangeTime::seconds);
  return found;
}

}  // namespace torch_xla::dispatch
