#include "executor/in_flight.h"

#include <algorithm>
#include <atomic>

#include "executor/live_data.h"
#include "lazy/device.h"
#include "ops/host/host_failure.h"
#include "util/error.h"
#include "util/unlocked.h"

namespace torch_xla::executor {

void fail(const pjrt::Error& error, const std::string& context) {
  ops::rethrow_host_failure(error.what(), context);
  const bool no_memory = error.code() == PJRT_Error_Code_RESOURCE_EXHAUSTED;
  constexpr const char* kAdvice =
      " Let go of tensors (del), make the batch smaller, or cut the step (torch_xla.sync()).";
  util::fail(no_memory ? util::ErrorKind::OutOfMemory : util::ErrorKind::Runtime, error.what(),
             no_memory ? kAdvice : "", context, no_memory ? describe_live_data() : "");
}

namespace {
std::atomic<uint64_t> num_runs_and_reads{0};
}  // namespace

uint64_t runs_and_reads() { return num_runs_and_reads.load(std::memory_order_relaxed); }
void count_run_or_read() { num_runs_and_reads.fetch_add(1, std::memory_order_relaxed); }

void Mark::run_ended() {
  const std::lock_guard lock(mutex_);
  if (--left_ != 0) return;
  time_ = Clock::now();
  changed_.notify_all();
}

bool Mark::reached() const {
  const std::lock_guard lock(mutex_);
  return left_ == 0;
}

void Mark::wait() const {
  const util::Unlocked unlocked;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return left_ == 0; });
}

Mark::Clock::time_point Mark::time() const {
  const std::lock_guard lock(mutex_);
  return time_;
}

InFlight& InFlight::of(int device) {
  return lazy::Device::of(device).runs.get<InFlight>([] { return new InFlight; });
}

void InFlight::finish(const Run& run) {
  for (const pjrt::Event& done : run.done) {
    try {
      try {
        done.await();
      } catch (const pjrt::Error& e) {
        fail(e, run.line.empty() ? "" : "\nThe run that failed was launched at " + run.line + ".");
      }
    } catch (...) {
      if (failure_ == nullptr) failure_ = std::current_exception();
    }
  }
}

void InFlight::finish_ready_runs() {
  while (!runs_.empty() && std::ranges::all_of(runs_.front()->done, &pjrt::Event::ready)) {
    finish(*runs_.front());
    runs_.pop_front();
  }
}

void InFlight::add(std::vector<pjrt::Event> done, std::string line, Arrays donated) {
  auto run = std::make_shared<const Run>(std::move(done), std::move(line), std::move(donated));
  const std::lock_guard lock(mutex_);
  finish_ready_runs();
  runs_.push_back(std::move(run));
}

void InFlight::report() {
  std::exception_ptr failure;
  {
    const std::lock_guard lock(mutex_);
    finish_ready_runs();
    std::swap(failure, failure_);
  }
  if (failure != nullptr) std::rethrow_exception(failure);
}

void InFlight::wait() {
  {
    const util::Unlocked unlocked;
    std::deque<std::shared_ptr<const Run>> runs;
    {
      const std::lock_guard lock(mutex_);
      runs = runs_;
    }
    for (const auto& run : runs) {
      for (const pjrt::Event& done : run->done) {
        try {
          done.await();
        } catch (const pjrt::Error&) {
          // finish() takes note of it
        }
      }
    }
  }
  report();
}

bool InFlight::idle() {
  const std::lock_guard lock(mutex_);
  finish_ready_runs();
  return runs_.empty();
}

std::shared_ptr<const Mark> InFlight::mark() {
  const std::lock_guard lock(mutex_);
  finish_ready_runs();
  size_t events = 1;  // the moment itself
  for (const auto& run : runs_) events += run->done.size();
  const auto mark = std::make_shared<Mark>(events);
  for (const auto& run : runs_) {
    for (const pjrt::Event& done : run->done) {
      done.on_ready([mark](std::exception_ptr) { mark->run_ended(); });
    }
  }
  mark->run_ended();
  return mark;
}

void InFlight::fail_read(const pjrt::Error& error, const std::string& context) {
  wait();
  fail(error, context);
}

}  // namespace torch_xla::executor
