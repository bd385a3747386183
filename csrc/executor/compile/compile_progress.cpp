#include "executor/compile/compile_progress.h"

#include <chrono>
#include <cstdio>
#include <mutex>
#include <system_error>
#include <utility>

#include <sys/ioctl.h>
#include <unistd.h>

namespace torch_xla::executor {
namespace {

// Writes over the line on which the cursor is. A line that is longer than the terminal could not be
// erased again.
void show(std::string line) {
  winsize size{};
  const bool is_known = ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  if (const size_t width = is_known ? size.ws_col - 1u : 79u; line.size() > width) {
    line = line.substr(line.size() - width);
  }
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
}

std::string time_text(std::chrono::seconds taken) {
  char text[32];
  std::snprintf(text, sizeof(text), "%02lld:%02lld", static_cast<long long>(taken.count() / 60),
                static_cast<long long>(taken.count() % 60));
  return text;
}

}  // namespace

CompileProgress::CompileProgress(const Program& program) {
  if (isatty(STDERR_FILENO) == 0) return;
  std::string what = "Compiling \"" + program.name + "\"" +
                     (program.place.empty() ? "" : " of " + program.place) + " (" +
                     std::to_string(program.function.calls.size()) + " calls)";
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
  do {
    const auto taken = std::chrono::steady_clock::now() - start;
    show(what + ": " + time_text(std::chrono::duration_cast<std::chrono::seconds>(taken)));
  } while (!wait(kInterval));
  show("");
}

}  // namespace torch_xla::executor
