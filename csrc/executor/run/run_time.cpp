#include "executor/run/run_time.h"

#include <algorithm>
#include <array>
#include <atomic>

#include "debug/metrics.h"
#include "executor/run/runtime.h"
#include "lazy/device.h"
#include "util/lock_order.h"
#include "util/unlocked.h"

namespace torch_xla::executor {
namespace {

struct OfDevice {
  std::atomic<uint64_t> launched = 0, ended = 0;
  std::atomic<int64_t> last_end = 0;
};

std::atomic<std::chrono::steady_clock::rep> last_launch = 0;

OfDevice& of(int device) {
  static std::array<OfDevice, lazy::Device::kMost> all;
  return all[static_cast<size_t>(device)];
}

debug::OpenSample sample(int device, bool is_eager) {
  static const debug::Metric times[] = {debug::Metric("ExecuteTime"),
                                        debug::Metric("ExecuteReplicatedTime"),
                                        debug::Metric("EagerOpExecuteTime")};
  const bool on_several = Runtime::get().devices(device).all.size() > 1;
  return debug::OpenSample(times[is_eager ? 2 : on_several ? 1 : 0]);
}

}  // namespace

RunTime::RunTime(int device, bool is_eager) : device_(device), sample_(sample(device, is_eager)) {
  ++of(device).launched;
  last_launch.store(launched_.time_since_epoch().count(), std::memory_order_relaxed);
}

void RunTime::end() {
  const auto nanoseconds = [](Clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  };
  OfDevice& device = of(device_);
  const int64_t now = nanoseconds(Clock::now());
  const int64_t before = device.last_end.exchange(now);
  sample_.end(static_cast<double>(now - std::max(before, nanoseconds(launched_))));
  ++device.ended;
  device.ended.notify_all();
}

double RunTime::seconds_since_launch() {
  const Clock::rep then = last_launch.load(std::memory_order_relaxed);
  if (then == 0) return -1;
  const std::chrono::duration<double> since =
      Clock::now().time_since_epoch() - Clock::duration(then);
  return since.count();
}

void RunTime::await_all(int device) {
  Runtime* runtime = Runtime::get_if_made();
  if (runtime == nullptr || runtime->client().in_forked_child()) return;  // whose runs never end
  const util::Unlocked unlocked;
  util::about_to_wait_for(util::Rank::Device);
  OfDevice& of_device = of(device);
  const uint64_t launched = of_device.launched;
  for (uint64_t ended = of_device.ended; ended < launched; ended = of_device.ended) {
    of_device.ended.wait(ended);
  }
}

}  // namespace torch_xla::executor
