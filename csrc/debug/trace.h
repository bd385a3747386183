// Spans of what this process does, recorded while somebody makes a profile. Those of torch.profiler
// have them too; torch.profiler.record_function is a span of ours. One that nobody records costs
// some loads.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/record_function.h>

namespace torch_xla::debug {

// The work of a thread or a device from `begin` to `end`, in nanoseconds since the epoch.
struct Event {
  std::string name;
  int64_t begin = 0, end = 0;
  std::vector<std::pair<std::string, std::string>> details;
};

// Events in the order in which they ended.
struct Track {
  std::string name;  // "main", "xla:0"
  int64_t id = 0;    // of the thread, as the system numbers them; of the device
  bool is_device = false;
  std::vector<Event> events;
};

namespace trace_detail {
extern std::atomic<bool> on, kernels;
}
inline bool is_tracing() { return trace_detail::on.load(std::memory_order_relaxed); }
// Also the kernels of a program that this process runs itself.
inline bool is_tracing_kernels() { return trace_detail::kernels.load(std::memory_order_relaxed); }

// Begins to keep events. Throws where somebody does already.
void start_trace(bool kernels);
// Ends that and returns what was kept.
std::vector<Track> stop_trace();

int64_t now_ns();
// Adds an event of the calling thread; nothing unless somebody keeps them.
void add_event(Event event);
// The same of a device, whose event was expected since it began.
void expect_device_event();
void add_device_event(int device, Event event);
// Waits for the events that are expected.
void wait_for_device_events();

// The time from here to its end, as an event of the calling thread.
class Span {
 public:
  explicit Span(std::string_view name) {
    if (auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION)) [[unlikely]]
      torch_.emplace(std::move(*callbacks)).before(name);
    if (is_tracing()) [[unlikely]]
      begin(name);
  }
  ~Span() {
    if (begin_ != 0) [[unlikely]]
      end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  // Adds a detail; `make` returns its text, and is not called unless somebody keeps events.
  template <class Make>
  void detail(const char* name, Make make) {
    if (begin_ != 0) details_.emplace_back(name, make());
  }

 private:
  void begin(std::string_view name);
  void end();

  std::optional<at::RecordFunction> torch_;  // where PyTorch records
  int64_t begin_ = 0;                        // 0: not kept
  std::string name_;
  std::vector<std::pair<std::string, std::string>> details_;
};

}  // namespace torch_xla::debug
