#include "debug/trace.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>

#include <pthread.h>
#include <unistd.h>

#include "util/error.h"
#include "util/fork_mutex.h"
#include "util/unlocked.h"

namespace torch_xla::debug {

std::atomic<bool> trace_detail::on{false}, trace_detail::kernels{false};

namespace {

// torch.profiler.record_function as a span.
struct UserScope : at::ObserverContext {
  int64_t begin = now_ns();

  static std::unique_ptr<at::ObserverContext> enter(const at::RecordFunction&) {
    return std::make_unique<UserScope>();
  }
  static void exit(const at::RecordFunction& function, at::ObserverContext* context) {
    const int64_t begin = static_cast<UserScope*>(context)->begin;
    add_event({function.name(), begin, now_ns(), {}});
  }
};

struct Tracks {
  util::ForkMutex mutex;
  at::CallbackHandle user_scopes = at::INVALID_CALLBACK_HANDLE;
  std::map<int64_t, Track> threads, devices;
};

Tracks& tracks() {
  static auto& all = *new Tracks;
  return all;
}

// Runs whose end will be an event. A forked child has none.
std::atomic<int> expected{0};

std::string name_of_thread() {
  char name[32] = "";
  pthread_getname_np(pthread_self(), name, sizeof(name));
  return name;
}

}  // namespace

int64_t now_ns() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

void start_trace(bool kernels) {
  Tracks& all = tracks();
  const std::lock_guard lock(all.mutex);
  TXLA_CHECK(
      !is_tracing(),
      "profiler: expected no other profile to be recorded, got a second one. Stop the first.");
  all.threads.clear();
  all.devices.clear();
  all.user_scopes =
      at::addGlobalCallback(at::RecordFunctionCallback(&UserScope::enter, &UserScope::exit)
                                .scopes({at::RecordScope::USER_SCOPE}));
  trace_detail::kernels.store(kernels, std::memory_order_relaxed);
  trace_detail::on.store(true, std::memory_order_relaxed);
}

std::vector<Track> stop_trace() {
  Tracks& all = tracks();
  const std::lock_guard lock(all.mutex);
  TXLA_CHECK(is_tracing(), "profiler: expected a profile that is being recorded, got none.");
  at::removeCallback(all.user_scopes);
  trace_detail::on.store(false, std::memory_order_relaxed);
  trace_detail::kernels.store(false, std::memory_order_relaxed);
  std::vector<Track> result;
  for (auto& [id, track] : all.threads) result.push_back(std::move(track));
  for (auto& [id, track] : all.devices) result.push_back(std::move(track));
  all.threads.clear();
  all.devices.clear();
  return result;
}

void add_event(Event event) {
  Tracks& all = tracks();
  const std::lock_guard lock(all.mutex);
  if (!is_tracing()) return;
  const int64_t id = gettid();
  Track& track = all.threads[id];
  if (track.events.empty()) {
    track.id = id;
    track.name = id == getpid() ? "main" : name_of_thread();
  }
  track.events.push_back(std::move(event));
}

void expect_device_event() {
  static const int once = pthread_atfork(nullptr, nullptr, [] { expected.store(0); });
  TXLA_CHECK(once == 0, "profiler: no memory for a handler of fork().");
  expected.fetch_add(1);
}

void wait_for_device_events() {
  if (expected.load() == 0) return;
  const util::Unlocked unlocked;
  for (int left = expected.load(); left > 0; left = expected.load()) expected.wait(left);
}

namespace {

void keep_device_event(int device, Event event) {
  Tracks& all = tracks();
  const std::lock_guard lock(all.mutex);
  if (!is_tracing()) return;
  Track& track = all.devices[device];
  track.id = device;
  track.is_device = true;
  track.name = "xla:" + std::to_string(device);
  // A device does one thing at a time: what was launched before has ended when this begins.
  if (!track.events.empty()) event.begin = std::max(event.begin, track.events.back().end);
  track.events.push_back(std::move(event));
}

}  // namespace

void add_device_event(int device, Event event) {
  keep_device_event(device, std::move(event));
  expected.fetch_sub(1);
  expected.notify_all();
}

void Span::begin(std::string_view name) {
  name_ = name;
  begin_ = now_ns();
}

void Span::end() { add_event({std::move(name_), begin_, now_ns(), std::move(details_)}); }

}  // namespace torch_xla::debug
