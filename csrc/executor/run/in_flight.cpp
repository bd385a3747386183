#include "executor/run/in_flight.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include <c10/util/Exception.h>

#include "cpu/host_failure.h"
#include "executor/program/program.h"
#include "executor/run/live_data.h"
#include "lazy/device.h"
#include "lazy/lock.h"
#include "util/error.h"
#include "util/unlocked.h"

namespace torch_xla::executor {

void fail(const pjrt::Error& error, const std::string& context) {
  cpu::rethrow_host_failure(error.what(), context);
  const bool no_memory = error.code() == PJRT_Error_Code_RESOURCE_EXHAUSTED;
  constexpr const char* kAdvice =
      " Let go of tensors (del), make the batch smaller, or cut the step (torch_xla.sync()).";
  util::fail(no_memory ? util::ErrorKind::OutOfMemory : util::ErrorKind::Runtime, error.what(),
             no_memory ? kAdvice : "", context, no_memory ? describe_live_data() : "");
}

void fail_lost(const pjrt::Array& value) {
  if (value.is_given_away()) {
    util::fail(util::ErrorKind::Runtime,
               "expected a tensor with a value, got one whose memory was given away to ",
               *value.loss(),
               ", as dynamo_set_buffer_donor_ asks for. Read it before, or give a clone away.");
  }
  util::fail(util::ErrorKind::Runtime,
             "expected the values that this step reads, got one that was lost when the run that "
             "was to make or overwrite it failed (",
             *value.loss(), "). Assign the tensor anew, or load it from a checkpoint.");
}

std::string describe_failure(const std::string& line, int64_t lost) {
  std::string text;
  if (!line.empty()) text = "\nThe run that failed was launched at " + line + ".";
  if (lost == 0) return text + "\nWhat it was to overwrite is as it was before.";
  return text + "\nIt had taken over the memory of " + std::to_string(lost) +
         (lost == 1 ? " tensor that it was" : " tensors that it was") +
         " to overwrite: their values, parameters of a model for example, are lost. Load them from "
         "a "
         "checkpoint. With XLA_NO_DONATION=1 they stay, in twice the memory.";
}

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
  util::about_to_wait_for(util::Rank::Device);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return left_ == 0; });
}

Mark::Clock::time_point Mark::time() const {
  const std::lock_guard lock(mutex_);
  return time_;
}

namespace {

// Without what errors of PyTorch add: where in C++ they were thrown.
std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const c10::Error& e) {
    return e.what_without_backtrace();
  } catch (const std::exception& e) {
    return e.what();
  }
}

// The exception that tells the user of the plugin's error.
std::exception_ptr told_of(const InFlight::Run& run, const std::exception_ptr& failure) {
  int64_t lost = 0;
  for (const auto& array : run.donated) lost += array->is_deleted();
  try {
    try {
      std::rethrow_exception(failure);
    } catch (const pjrt::Error& e) {
      fail(e, describe_failure(run.place.str(), lost));
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace

InFlight& InFlight::of(int device) {
  return lazy::Device::of(device).runs.get<InFlight>([device] { return new InFlight(device); });
}

void InFlight::finish(std::shared_ptr<const Run> run) {
  for (const pjrt::Event& done : run->done) {
    try {
      done.await();
    } catch (const pjrt::Error&) {
      if (failure_ == nullptr) failure_ = std::current_exception();
    }
  }
  if (failure_ != nullptr) {
    failed_.push_back(std::move(run));
  } else if (run->program != nullptr) {
    run->program->has_run = true;
  }
}

InFlight::Runs InFlight::finish_ready_runs() {
  Runs ended;
  while (!runs_.empty() && std::ranges::all_of(runs_.front()->done, &pjrt::Event::ready)) {
    ended.push_back(std::move(runs_.front()));
    runs_.pop_front();
    finish(ended.back());
  }
  return ended;
}

void InFlight::await(const std::vector<pjrt::Event>& done, const Program& program) {
  const util::Unlocked unlocked;
  util::about_to_wait_for(util::Rank::Device);
  for (const pjrt::Event& event : done) event.await();
  program.has_run = true;
}

void InFlight::add(Run run) {
  auto added = std::make_shared<const Run>(std::move(run));
  Runs ended;
  const std::lock_guard lock(mutex_);
  ended = finish_ready_runs();
  runs_.push_back(std::move(added));
}

std::unordered_set<const lazy::Storage*> InFlight::overwritten() {
  std::unordered_set<const lazy::Storage*> all;
  const std::lock_guard lock(mutex_);
  for (const Runs* runs : {&failed_, &runs_}) {
    for (const auto& run : *runs) {
      for (const Overwritten& o : run->overwritten) all.insert(o.storage);
    }
  }
  return all;
}

bool InFlight::has_failed() {
  Runs ended;
  const std::lock_guard lock(mutex_);
  ended = finish_ready_runs();
  return failure_ != nullptr;
}

std::optional<InFlight::Failure> InFlight::take_failure() {
  if (!has_failed()) return std::nullopt;
  await_all();
  has_failed();
  std::exception_ptr failure;
  Runs failed;
  {
    const std::lock_guard lock(mutex_);
    std::swap(failure, failure_);
    std::swap(failed, failed_);
  }
  if (failure == nullptr) return std::nullopt;  // another thread was faster
  Failure taken = {told_of(*failed.front(), failure), {}};
  const lazy::GraphLock lock;
  note_lost_data(device_, text_of(taken.why));
  for (const auto& run : failed) {
    std::ranges::copy(run->overwritten, std::back_inserter(taken.overwritten));
    give_back(run->given);
  }
  return taken;
}

void InFlight::await_all() {
  const util::Unlocked unlocked;
  util::about_to_wait_for(util::Rank::Device);
  Runs runs;
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

bool InFlight::may_fail() {
  Runs ended;
  const std::lock_guard lock(mutex_);
  ended = finish_ready_runs();
  return !runs_.empty() || failure_ != nullptr;
}

bool InFlight::idle() {
  Runs ended;
  const std::lock_guard lock(mutex_);
  ended = finish_ready_runs();
  return runs_.empty();
}

std::shared_ptr<const Mark> InFlight::mark() {
  Runs ended;
  const std::lock_guard lock(mutex_);
  ended = finish_ready_runs();
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

}  // namespace torch_xla::executor
