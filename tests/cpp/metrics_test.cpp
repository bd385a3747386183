#include "debug/metrics.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace torch_xla::debug {
namespace {

class Metrics : public ::testing::Test {
 protected:
  void SetUp() override {
    clear_counters();
    clear_metrics();
  }
};

using Names = std::vector<std::string>;

TEST_F(Metrics, CountersOfOneNameCountTogether) {
  static Counter first("xla::add");
  const Counter second("xla::add");
  Counter* third = counter("xla::add");
  first.add();
  second.add(4);
  third->add(2);
  EXPECT_EQ(counter_value("xla::add"), 7);
  EXPECT_EQ(first.value(), 7);
  EXPECT_EQ(counter("xla::add"), third);
}

TEST_F(Metrics, CountersThatHaveNotCountedAreNotActive) {
  const Counter b("test::b"), a("test::a");
  EXPECT_EQ(counter_names(), Names());
  EXPECT_EQ(counter_value("test::a"), std::nullopt);
  EXPECT_EQ(counter_value("test::never_made"), std::nullopt);
  b.add();
  a.add();
  EXPECT_EQ(counter_names(), (Names{"test::a", "test::b"}));
  clear_counters();
  EXPECT_EQ(counter_names(), Names());
  EXPECT_EQ(counter_value("test::a"), std::nullopt);
  EXPECT_EQ(metrics_report(), "");
  a.add(3);
  EXPECT_EQ(counter_names(), Names{"test::a"});
  EXPECT_EQ(counter_value("test::a"), 3);
}

TEST_F(Metrics, ClearsDoNotTouchEachOther) {
  Counter("test::kept").add();
  Metric("KeptTime").add(1);
  clear_counters();
  EXPECT_EQ(metric_names(), Names{"KeptTime"});
  Counter("test::kept").add();
  clear_metrics();
  EXPECT_EQ(metric_names(), Names());
  EXPECT_FALSE(metric_data("KeptTime").has_value());
  EXPECT_EQ(counter_names(), Names{"test::kept"});
}

TEST_F(Metrics, ThreadsLoseNoCount) {
  constexpr int kThreads = 8;
  constexpr int kCounts = 50'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([t] {
      const Counter shared("test::shared");
      const Counter own("test::own" + std::to_string(t % 2));
      const Metric metric("ThreadValue", Unit::Value, 16);
      for (int i = 0; i < kCounts; ++i) {
        shared.add();
        own.add(2);
        if (i % 100 == 0) {
          metric.add(1);
        }
      }
    });
  }
  // Reading while others count is allowed and never shows more than was counted.
  for (int i = 0; i < 100; ++i) {
    EXPECT_LE(counter_value("test::shared").value_or(0), kThreads * kCounts);
    EXPECT_LE(metrics_report().size(), 2000u);
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(counter_value("test::shared"), kThreads * kCounts);
  EXPECT_EQ(counter_value("test::own0"), kThreads / 2 * kCounts * 2);
  EXPECT_EQ(counter_value("test::own1"), kThreads / 2 * kCounts * 2);
  const MetricData data = metric_data("ThreadValue").value();
  EXPECT_EQ(data.total_samples, kThreads * kCounts / 100);
  EXPECT_EQ(data.accumulator, kThreads * kCounts / 100);
  EXPECT_EQ(data.samples.size(), 16u);
}

TEST_F(Metrics, MetricKeepsTheLastSamplesAndTheTotals) {
  const Metric metric("RingValue", Unit::Value, 4);
  for (int i = 1; i <= 10; ++i) {
    metric.add(i);
  }
  const MetricData data = metric_data("RingValue").value();
  EXPECT_EQ(data.total_samples, 10);
  EXPECT_EQ(data.accumulator, 55);
  std::vector<double> values;
  for (const Sample& sample : data.samples) {
    values.push_back(sample.value);
  }
  EXPECT_EQ(values, (std::vector<double>{7, 8, 9, 10}));
  EXPECT_TRUE(std::is_sorted(
      data.samples.begin(), data.samples.end(),
      [](const Sample& a, const Sample& b) { return a.timestamp_ns < b.timestamp_ns; }));
}

TEST_F(Metrics, MetricAfterClearStartsAnew) {
  const Metric metric("ClearedValue", Unit::Value, 4);
  for (int i = 0; i < 6; ++i) {
    metric.add(100);
  }
  clear_metrics();
  EXPECT_FALSE(metric_data("ClearedValue").has_value());
  for (int i = 1; i <= 3; ++i) {
    metric.add(i);
  }
  const MetricData data = metric_data("ClearedValue").value();
  EXPECT_EQ(data.total_samples, 3);
  EXPECT_EQ(data.accumulator, 6);
  ASSERT_EQ(data.samples.size(), 3u);
  EXPECT_EQ(data.samples[0].value, 1);
  EXPECT_EQ(data.samples[2].value, 3);
}

TEST_F(Metrics, TimestampsAreWallClock) {
  const auto now_ns = [] {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  };
  const std::int64_t before = now_ns();
  Metric("StampTime").add(1);
  const std::int64_t stamp = metric_data("StampTime").value().samples[0].timestamp_ns;
  EXPECT_GE(stamp, before);
  EXPECT_LE(stamp, now_ns());
}

TEST_F(Metrics, TimedScopeMeasuresNanoseconds) {
  const Metric metric("ScopeTime");
  const auto start = std::chrono::steady_clock::now();
  {
    TimedScope scope(metric);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const std::chrono::duration<double, std::nano> outside = std::chrono::steady_clock::now() - start;
  const double value = metric_data("ScopeTime").value().accumulator;
  EXPECT_GE(value, 5e6);
  EXPECT_LE(value, outside.count());
}

TEST_F(Metrics, FormatTime) {
  const auto time = [](double ns) { return format_value(ns, Unit::Time); };
  EXPECT_EQ(time(369'401'746'001.0), "06m09s401ms746.001us");
  EXPECT_EQ(time(778'572'062.0), "778ms572.062us");
  EXPECT_EQ(time(1'032'778.0), "001ms032.778us");
  EXPECT_EQ(time(21'102'853'173.0), "21s102ms853.173us");
  EXPECT_EQ(time(0), "000.000us");
  EXPECT_EQ(time(21), "000.021us");
  EXPECT_EQ(time(3'600e9), "01h00m00s000ms000.000us");
  EXPECT_EQ(time(90'061e9), "1d01h01m01s000ms000.000us");
  EXPECT_EQ(time(999'999.6), "001ms000.000us");
  EXPECT_EQ(time(-1'500), "-001.500us");
}

TEST_F(Metrics, FormatBytesAndValues) {
  EXPECT_EQ(format_value(0, Unit::Bytes), "0.00B");
  EXPECT_EQ(format_value(1023, Unit::Bytes), "1023.00B");
  EXPECT_EQ(format_value(1536, Unit::Bytes), "1.50KB");
  EXPECT_EQ(format_value(3.25 * 1024 * 1024 * 1024, Unit::Bytes), "3.25GB");
  EXPECT_EQ(format_value(0.25, Unit::Value), "0.25");
  EXPECT_EQ(format_value(395, Unit::Value), "395.00");
}

TEST_F(Metrics, ReportOfOneSampleHasNoRates) {
  Metric("CompileTime").add(1'032'778);
  EXPECT_EQ(metrics_report(),
            "Metric: CompileTime\n"
            "  TotalSamples: 1\n"
            "  Accumulator: 001ms032.778us\n"
            "  Percentiles: 1%=001ms032.778us; 5%=001ms032.778us; 10%=001ms032.778us; "
            "20%=001ms032.778us; 50%=001ms032.778us; 80%=001ms032.778us; 90%=001ms032.778us; "
            "95%=001ms032.778us; 99%=001ms032.778us\n");
}

TEST_F(Metrics, ReportOfAHundredSamples) {
  const Metric metric("StepValue", Unit::Value, 100);
  // Descending, so that an unsorted percentile shows; the first 50 fall out of the ring.
  for (int i = 150; i > 0; --i) {
    metric.add(i - 1);
  }
  Counter("CachedSyncTensors").add(395);
  const std::string report = metrics_report();
  EXPECT_TRUE(
      report.starts_with("Metric: StepValue\n"
                         "  TotalSamples: 150\n"
                         "  Accumulator: 11175.00\n"
                         "  ValueRate: "))
      << report;
  EXPECT_TRUE(report.ends_with(
      " / second\n"
      "  Percentiles: 1%=1.00; 5%=5.00; 10%=10.00; 20%=20.00; 50%=50.00; 80%=80.00; "
      "90%=90.00; 95%=95.00; 99%=99.00\n"
      "Counter: CachedSyncTensors\n"
      "  Value: 395\n"))
      << report;

  const MetricData data = metric_data("StepValue").value();
  const double seconds =
      static_cast<double>(data.samples.back().timestamp_ns - data.samples.front().timestamp_ns) /
      1e9;
  const auto number_after = [&](const std::string& label) {
    return std::stod(report.substr(report.find(label) + label.size()));
  };
  EXPECT_NEAR(number_after("  Rate: ") * seconds / 100, 1, 1e-4);
  EXPECT_NEAR(number_after("ValueRate: ") * seconds / 4950, 1, 1e-4);
}

TEST_F(Metrics, ShortReportHasTheNamedAndTheHostOperations) {
  for (const char* name : {"CachedCompile", "MarkStep", "xla::add", "aten::nonzero"}) {
    Counter(name).add();
  }
  Metric("CompileTime").add(1);
  Metric("ExecuteTime").add(1);
  const std::string report = short_metrics_report({"MarkStep", "test::absent"}, {"ExecuteTime"});
  EXPECT_TRUE(report.starts_with("Metric: ExecuteTime\n")) << report;
  EXPECT_TRUE(
      report.ends_with("Counter: MarkStep\n  Value: 1\n"
                       "Counter: aten::nonzero\n  Value: 1\n"))
      << report;
  for (const char* other : {"CompileTime", "CachedCompile", "xla::add", "absent"}) {
    EXPECT_EQ(report.find(other), std::string::npos) << report;
  }
}

TEST_F(Metrics, AnOpenSampleCountsBeforeItHasItsValue) {
  const Metric metric("RunTime");
  const OpenSample first(metric), second(metric);
  EXPECT_EQ(metric_data("RunTime")->total_samples, 2);
  EXPECT_TRUE(metric_data("RunTime")->samples.empty());
  EXPECT_EQ(metrics_report(), "Metric: RunTime\n  TotalSamples: 2\n  Accumulator: 000.000us\n");
  second.end(2000);
  EXPECT_EQ(metric_data("RunTime")->accumulator, 2000);
  EXPECT_EQ(metric_data("RunTime")->samples.size(), 1);
  clear_metrics();
  first.end(1000);
  EXPECT_FALSE(metric_data("RunTime").has_value());
}

TEST_F(Metrics, OneOfManyIsTimedAndAllAreCounted) {
  const OftenTimed metric("OftenTime");
  EXPECT_FALSE(metric_data("OftenTime").has_value());
  constexpr int kCalls = 10 * OftenTimed::kEvery + 7;
  for (int i = 0; i < kCalls; ++i) {
    const OftenTimed::Scope scope(metric);
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  const MetricData data = *metric_data("OftenTime");
  EXPECT_EQ(data.total_samples, kCalls);
  EXPECT_EQ(data.samples.size(), 8 + 9);
  EXPECT_GE(data.accumulator, kCalls * 100e3);
  EXPECT_LT(data.accumulator, kCalls * 10e6);
  clear_metrics();
  EXPECT_FALSE(metric_data("OftenTime").has_value());
  {
    const OftenTimed::Scope scope(metric);
  }
  EXPECT_EQ(metric_data("OftenTime")->total_samples, 1);
}

TEST_F(Metrics, ACounterMayHaveTwoNames) {
  static std::atomic<std::int64_t> cell;
  count_in("test::one", cell);
  count_in("test::other", cell);
  const Counter counter("test::one");
  counter.add(2);
  EXPECT_EQ(counter_value("test::other"), 2);
  Counter("test::other").add();
  EXPECT_EQ(counter_value("test::one"), 3);
  clear_counters();
  EXPECT_FALSE(counter_value("test::other").has_value());
  EXPECT_EQ(cell, 0);
}

TEST_F(Metrics, ForkedChildCanCountAndReport) {
  // Another thread keeps taking the lock, so that some of the forks happen while it is held.
  std::atomic<bool> stop{false};
  const Metric metric("ForkTime");
  std::thread busy([&] {
    while (!stop.load()) {
      metric.add(1);
    }
  });
  for (int i = 0; i < 50 && !HasFailure(); ++i) {
    const pid_t child = fork();
    if (child < 0) {
      ADD_FAILURE() << "fork failed";
      break;
    }
    if (child == 0) {
      alarm(5);  // a deadlock ends the child with a signal
      metric.add(1);
      _exit(metric_data("ForkTime").has_value() ? 0 : 1);
    }
    int status = -1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  stop.store(true);
  busy.join();
}

}  // namespace
}  // namespace torch_xla::debug
