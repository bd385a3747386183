#include "executor/compile_progress.h"

#include <chrono>
#include <system_error>
#include <utility>

namespace torch_xla::executor {
namespace {

ProgressReporter& reporter() {
  static auto& function = *new ProgressReporter;
  return function;
}

}  // namespace

void set_progress_reporter(ProgressReporter function) { reporter() = std::move(function); }

CompileProgress::CompileProgress(const Program& program) {
  if (!reporter()) return;
  std::string what = "Compiling \"" + program.name + "\"" +
                     (program.place.empty() ? "" : " of " + program.place) + " (" +
                     std::to_string(program.recipe.calls.size()) + " calls)";
  try {
    thread_ = std::jthread([this, what = std::move(what)] { tell(what); });
  } catch (const std::system_error&) {  // no more threads: nothing is told
  }
}

CompileProgress::~CompileProgress() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

void CompileProgress::tell(const std::string& what) {
  using std::chrono_literals::operator""ms;
  constexpr auto kPatience = 3000ms, kInterval = 200ms;
  const auto start = std::chrono::steady_clock::now();
  const auto wait = [&](std::chrono::milliseconds time) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, time, [this] { return ended_; });
  };
  if (wait(kPatience)) return;
  for (bool ended = false; true; ended = wait(kInterval)) {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
    reporter()(what, taken.count(), ended);
    if (ended) return;
  }
}

}  // namespace torch_xla::executor
