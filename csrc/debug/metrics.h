// Counters and metrics that users read through torch_xla.debug.metrics, kept for the whole process.
// Counting takes no lock; a metric sample takes one short lock. Both may be used from any thread.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace torch_xla::debug {

// A named counter. All Counters of one name count together:
//   static Counter counter("xla::add");  counter.add();
class Counter {
 public:
  explicit Counter(std::string_view name);

  void add(std::int64_t n = 1) const noexcept { cell_->fetch_add(n, std::memory_order_relaxed); }
  std::int64_t value() const noexcept { return cell_->load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t>* cell_;
};

// Returns the counter of that name, made on first use and valid until the process ends. Callers
// look it up once and keep it (say, beside an operator), not on every count.
Counter* counter(std::string_view name);
// Makes `name` the counter that `cell` holds, which lives until the process ends. It may have other
// names. Called before anything counts under this one.
void count_in(std::string_view name, std::atomic<std::int64_t>& cell);

// The unit in which a metric's values are printed. Time values are nanoseconds.
enum class Unit { Time, Bytes, Value };

struct Sample {
  std::int64_t timestamp_ns;  // since the Unix epoch
  double value;
};

struct MetricState;

// A named series of values; the last `max_samples` are kept. All Metrics of one name are one
// series, whose unit and bound come from the first.
class Metric {
 public:
  static constexpr std::size_t kMaxSamples = 1024;

  explicit Metric(std::string_view name, Unit unit = Unit::Time,
                  std::size_t max_samples = kMaxSamples);

  void add(double value) const;

 private:
  MetricState* state_;
  friend class OpenSample;
};

// A sample of a metric that takes a while: it counts from when it is made, and has its value once
// that is known.
class OpenSample {
 public:
  explicit OpenSample(const Metric& metric);
  // Called once, from any thread. Where the metric was cleared meanwhile, the value is left out.
  void end(double value) const;

 private:
  MetricState* state_;
  std::uint64_t times_cleared_;
};

// A metric of unit Time of what happens more often than it can be timed. The first are timed, then
// one of kEvery, which stands for all since the one before: the number of samples is right, their
// sum an estimate. Where threads are in a Scope at the same time, some may be left out.
class OftenTimed {
 public:
  static constexpr std::uint32_t kEvery = 64;

  explicit OftenTimed(std::string_view name);

  class Scope {
   public:
    explicit Scope(const OftenTimed& metric) : metric_(metric) {
      const std::uint32_t untimed = metric.untimed_->load(std::memory_order_relaxed);
      if (untimed + 1 < kEvery) [[likely]] {
        metric.untimed_->store(untimed + 1, std::memory_order_relaxed);
      } else {
        start_ = now();
      }
    }
    ~Scope() {
      if (start_ != 0) [[unlikely]]
        metric_.end(start_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const OftenTimed& metric_;
    std::int64_t start_ = 0;  // nanoseconds; 0: this one is not timed
  };

 private:
  static std::int64_t now();
  void end(std::int64_t start) const;

  MetricState* state_;
  std::atomic<std::uint32_t>* untimed_;  // of the state: how many came since the one that was timed
};

// Adds the lifetime of the scope to a metric of unit Time:
//   static Metric metric("CompileTime");  TimedScope scope(metric);
class TimedScope {
 public:
  explicit TimedScope(const Metric& metric)
      : metric_(metric), start_(std::chrono::steady_clock::now()) {}
  ~TimedScope() {
    const std::chrono::duration<double, std::nano> taken =
        std::chrono::steady_clock::now() - start_;
    metric_.add(taken.count());
  }
  TimedScope(const TimedScope&) = delete;
  TimedScope& operator=(const TimedScope&) = delete;

 private:
  const Metric metric_;
  const std::chrono::steady_clock::time_point start_;
};

struct MetricData {
  Unit unit;
  std::int64_t total_samples;   // all samples since the last clear
  double accumulator;           // their sum
  std::vector<Sample> samples;  // those still kept, oldest first
  std::int64_t stands_for = 1;  // how many samples of the total each of them is
};

// Names are sorted. A counter or metric that has not counted since it was cleared is not active:
// it is in no list and no report, and has no value.
std::vector<std::string> counter_names();
std::vector<std::string> metric_names();
std::optional<std::int64_t> counter_value(std::string_view name);
std::optional<MetricData> metric_data(std::string_view name);

void clear_counters();
void clear_metrics();

// Returns the report of all that is active.
std::string metrics_report();
// Returns the report of the named ones and of every `aten::` counter (an operation that ran on the
// host).
std::string short_metrics_report(const std::vector<std::string>& counters,
                                 const std::vector<std::string>& metrics);

// Formats 61.5e9 -> "01m01s500ms0.000us", 1536 -> "1.50KB", 0.25 -> "0.25".
std::string format_value(double value, Unit unit);

}  // namespace torch_xla::debug
