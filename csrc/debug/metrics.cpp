#include "debug/metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>

#include "util/fork_mutex.h"

namespace torch_xla::debug {

// Guarded by the registry's mutex: samples come once per transfer, compile or run, not per op.
struct MetricState {
  Unit unit;
  std::size_t max_samples;
  std::vector<Sample> ring;  // grows to max_samples, then `next` is the oldest
  std::size_t next = 0;
  std::int64_t total_samples = 0;
  double accumulator = 0;
  std::uint64_t times_cleared = 0;
  // These are for an OftenTimed: the next one is timed where `untimed` has come to kEvery - 1.
  bool is_often_timed = false;
  std::atomic<std::uint32_t> untimed = 0;
  std::uint32_t untimed_at_last = 0;  // what it was set to when the last one was timed
  std::int64_t timed = 0;

  void reset_untimed();
  std::int64_t since_last() const {
    return std::int64_t{untimed.load(std::memory_order_relaxed)} - untimed_at_last;
  }

  // `value` is that of so many samples, of which it is kept as one.
  void add_value(double value, std::int64_t count = 1);
};

void MetricState::reset_untimed() {
  constexpr std::int64_t kFirst = 8;  // that are timed each after a clear
  untimed_at_last = is_often_timed && timed < kFirst ? OftenTimed::kEvery - 1 : 0;
  untimed.store(untimed_at_last, std::memory_order_relaxed);
}

// The caller holds the lock, so that samples are kept in the order of their times.
void MetricState::add_value(double value, std::int64_t count) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const Sample sample{std::chrono::duration_cast<std::chrono::nanoseconds>(now).count(), value};
  if (ring.size() < max_samples) {
    ring.push_back(sample);
  } else {
    ring[next] = sample;
    next = (next + 1) % max_samples;
  }
  accumulator += value * static_cast<double>(count);
}

namespace {

struct CounterState {
  // A line of its own: threads that count different things do not slow each other down.
  alignas(64) std::atomic<std::int64_t> cell{0};
};

struct Registry {
  util::ForkMutex mutex;
  std::map<std::string, std::atomic<std::int64_t>*, std::less<>> counters;
  std::deque<CounterState> cells;  // of counters; elements stay where they are
  std::map<std::string, std::unique_ptr<MetricState>, std::less<>> metrics;
  // Counters that counter() has handed out; a map's elements stay where they are.
  std::map<std::string, Counter, std::less<>> handles;
};

// Never destroyed: static Counters and running threads count until the process is gone.
Registry& registry() {
  static Registry& instance = *new Registry;
  return instance;
}

std::atomic<std::int64_t>* counter_cell(std::string_view name) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  auto found = all.counters.find(name);
  if (found == all.counters.end()) {
    found = all.counters.emplace(name, &all.cells.emplace_back().cell).first;
  }
  return found->second;
}

MetricState* metric_state(std::string_view name, Unit unit, std::size_t max_samples) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  auto found = all.metrics.find(name);
  if (found == all.metrics.end()) {
    auto state = std::make_unique<MetricState>();
    state->unit = unit;
    state->max_samples = std::max<std::size_t>(max_samples, 1);
    found = all.metrics.emplace(name, std::move(state)).first;
  }
  return found->second.get();
}

std::vector<Sample> ordered_samples(const MetricState& state) {
  std::vector<Sample> result(state.ring);
  std::rotate(result.begin(), result.begin() + static_cast<std::ptrdiff_t>(state.next),
              result.end());
  return result;
}

MetricData data_of(const MetricState& state) {
  // Those since the last that was timed are taken for as long as the others.
  const std::int64_t untimed = state.since_last();
  const double share = static_cast<double>(untimed) / static_cast<double>(state.total_samples);
  return {state.unit, state.total_samples + untimed, state.accumulator * (1 + share),
          ordered_samples(state), state.timed == 0 ? 1 : state.total_samples / state.timed};
}

std::string format_time(double nanoseconds) {
  const bool negative = nanoseconds < 0;
  const auto total = static_cast<std::uint64_t>(std::llround(std::fabs(nanoseconds)));
  struct TimeUnit {
    std::uint64_t nanoseconds;
    const char* format;
  };
  constexpr std::array<TimeUnit, 5> kUnits = {{{86'400'000'000'000, "%llud"},
                                               {3'600'000'000'000, "%02lluh"},
                                               {60'000'000'000, "%02llum"},
                                               {1'000'000'000, "%02llus"},
                                               {1'000'000, "%03llums"}}};
  std::string text = negative ? "-" : "";
  char buffer[64];
  std::uint64_t rest = total;
  bool started = false;
  for (const TimeUnit& unit : kUnits) {
    const std::uint64_t count = rest / unit.nanoseconds;
    rest %= unit.nanoseconds;
    started = started || count != 0;
    if (started) {
      std::snprintf(buffer, sizeof(buffer), unit.format, static_cast<unsigned long long>(count));
      text += buffer;
    }
  }
  std::snprintf(buffer, sizeof(buffer), "%03llu.%03lluus",
                static_cast<unsigned long long>(rest / 1000),
                static_cast<unsigned long long>(rest % 1000));
  return text + buffer;
}

std::string format_bytes(double bytes) {
  constexpr std::array<const char*, 6> kUnits = {"B", "KB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (std::fabs(bytes) >= 1024 && unit + 1 < kUnits.size()) {
    bytes /= 1024;
    ++unit;
  }
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), "%.2f%s", bytes, kUnits[unit]);
  return buffer;
}

std::string format_number(double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), "%.2f", value);
  return buffer;
}

std::string format_rate(double value) {
  char buffer[64];
  std::snprintf(buffer, sizeof(buffer), "%g", value);
  return buffer;
}

void append_metric(std::string& report, const std::string& name, const MetricData& data) {
  report += "Metric: " + name + "\n";
  report += "  TotalSamples: " + std::to_string(data.total_samples) + "\n";
  report += "  Accumulator: " + format_value(data.accumulator, data.unit) + "\n";

  // The rates are those of the samples kept, over the time they span.
  const std::vector<Sample>& samples = data.samples;
  if (samples.empty()) return;  // none has ended yet
  const double seconds =
      static_cast<double>(samples.back().timestamp_ns - samples.front().timestamp_ns) * 1e-9;
  std::vector<double> values;
  double sum = 0;
  for (const Sample& sample : samples) {
    values.push_back(sample.value);
    sum += sample.value;
  }
  if (seconds > 0) {
    const double share = static_cast<double>(data.stands_for) / seconds;
    const auto count = static_cast<double>(samples.size());
    report += "  ValueRate: " + format_value(sum * share, data.unit) + " / second\n";
    report += "  Rate: " + format_rate(count * share) + " / second\n";
  }

  std::sort(values.begin(), values.end());
  report += "  Percentiles: ";
  bool first = true;
  for (const std::size_t percent : {1, 5, 10, 20, 50, 80, 90, 95, 99}) {
    const std::size_t index = std::min(values.size() * percent / 100, values.size() - 1);
    report += (first ? "" : "; ") + std::to_string(percent) +
              "%=" + format_value(values[index], data.unit);
    first = false;
  }
  report += "\n";
}

// Recorded calls are counted as `xla::<operator>`.
bool counts_host_operator(std::string_view name) {
  return name.find("::") != name.npos && !name.starts_with("xla::");
}

// `wanted` says by name which metrics and counters are printed.
template <class WantedMetric, class WantedCounter>
std::string report_of(WantedMetric wanted_metric, WantedCounter wanted_counter) {
  // Copied under the lock, formatted outside of it.
  std::vector<std::pair<std::string, MetricData>> metrics;
  std::vector<std::pair<std::string, std::int64_t>> counters;
  {
    Registry& all = registry();
    std::lock_guard lock(all.mutex);
    for (const auto& [name, state] : all.metrics) {
      if (state->total_samples != 0 && wanted_metric(name)) {
        metrics.emplace_back(name, data_of(*state));
      }
    }
    for (const auto& [name, cell] : all.counters) {
      const std::int64_t value = cell->load(std::memory_order_relaxed);
      if (value != 0 && wanted_counter(name)) {
        counters.emplace_back(name, value);
      }
    }
  }
  std::string report;
  for (const auto& [name, data] : metrics) {
    append_metric(report, name, data);
  }
  for (const auto& [name, value] : counters) {
    report += "Counter: " + name + "\n  Value: " + std::to_string(value) + "\n";
  }
  return report;
}

}  // namespace

Counter::Counter(std::string_view name) : cell_(counter_cell(name)) {}

Counter* counter(std::string_view name) {
  const Counter made(name);
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  return &all.handles.try_emplace(std::string(name), made).first->second;
}

void count_in(std::string_view name, std::atomic<std::int64_t>& cell) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  all.counters.insert_or_assign(std::string(name), &cell);
}

Metric::Metric(std::string_view name, Unit unit, std::size_t max_samples)
    : state_(metric_state(name, unit, max_samples)) {}

void Metric::add(double value) const {
  std::lock_guard lock(registry().mutex);
  ++state_->total_samples;
  state_->add_value(value);
}

OftenTimed::OftenTimed(std::string_view name)
    : state_(metric_state(name, Unit::Time, Metric::kMaxSamples)), untimed_(&state_->untimed) {
  std::lock_guard lock(registry().mutex);
  state_->is_often_timed = true;
  state_->reset_untimed();
}

std::int64_t OftenTimed::now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

void OftenTimed::end(std::int64_t start) const {
  const auto taken = static_cast<double>(now() - start);
  std::lock_guard lock(registry().mutex);
  const std::int64_t count = state_->since_last() + 1;
  state_->total_samples += count;
  state_->add_value(taken, count);
  ++state_->timed;
  state_->reset_untimed();
}

OpenSample::OpenSample(const Metric& metric) : state_(metric.state_) {
  std::lock_guard lock(registry().mutex);
  times_cleared_ = state_->times_cleared;
  ++state_->total_samples;
}

void OpenSample::end(double value) const {
  std::lock_guard lock(registry().mutex);
  if (state_->times_cleared == times_cleared_) state_->add_value(value);
}

std::vector<std::string> counter_names() {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  std::vector<std::string> names;
  for (const auto& [name, cell] : all.counters) {
    if (cell->load(std::memory_order_relaxed) != 0) {
      names.push_back(name);
    }
  }
  return names;
}

std::vector<std::string> metric_names() {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  std::vector<std::string> names;
  for (const auto& [name, state] : all.metrics) {
    if (state->total_samples != 0) {
      names.push_back(name);
    }
  }
  return names;
}

std::optional<std::int64_t> counter_value(std::string_view name) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  const auto found = all.counters.find(name);
  if (found == all.counters.end()) {
    return std::nullopt;
  }
  const std::int64_t value = found->second->load(std::memory_order_relaxed);
  return value == 0 ? std::nullopt : std::optional(value);
}

std::optional<MetricData> metric_data(std::string_view name) {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  const auto found = all.metrics.find(name);
  if (found == all.metrics.end() || found->second->total_samples == 0) {
    return std::nullopt;
  }
  return data_of(*found->second);
}

void clear_counters() {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  for (const auto& entry : all.counters) {
    entry.second->store(0, std::memory_order_relaxed);
  }
}

void clear_metrics() {
  Registry& all = registry();
  std::lock_guard lock(all.mutex);
  for (const auto& entry : all.metrics) {
    MetricState& state = *entry.second;
    state.ring.clear();
    state.next = 0;
    state.total_samples = 0;
    state.accumulator = 0;
    state.timed = 0;
    state.reset_untimed();
    ++state.times_cleared;
  }
}

std::string metrics_report() {
  const auto all = [](const std::string&) { return true; };
  return report_of(all, all);
}

std::string short_metrics_report(const std::vector<std::string>& counters,
                                 const std::vector<std::string>& metrics) {
  const std::set<std::string> wanted_counters(counters.begin(), counters.end());
  const std::set<std::string> wanted_metrics(metrics.begin(), metrics.end());
  return report_of([&](const std::string& name) { return wanted_metrics.contains(name); },
                   [&](const std::string& name) {
                     return wanted_counters.contains(name) || counts_host_operator(name);
                   });
}

std::string format_value(double value, Unit unit) {
  switch (unit) {
    case Unit::Time:
      return format_time(value);
    case Unit::Bytes:
      return format_bytes(value);
    case Unit::Value:
      return format_number(value);
  }
  return format_number(value);
}

}  // namespace torch_xla::debug
