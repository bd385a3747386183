// Tells PyTorch that xla devices exist: the current device per thread, streams, events, generators.
//
// A device has one stream, since its work is ordered by the data it uses and by the order of
// launches. What was recorded is work that the stream was given, so whoever waits for a point in
// that work, asks for it or for its time has it launched first.
#include <memory>
#include <mutex>
#include <utility>

#include <ATen/detail/XLAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "dispatch/device/generator.h"
#include "executor/run/in_flight.h"
#include "executor/run/runtime.h"
#include "executor/step/sync.h"
#include "util/lock_order.h"

namespace torch_xla::dispatch {
namespace {

at::Device device_at(int index) {
  return at::Device(at::kXLA, static_cast<c10::DeviceIndex>(index));
}

int index_or_current(c10::DeviceIndex index) {
  return index >= 0 ? index : executor::current_device();
}

// PyTorch keeps an event as a pointer to void. One without a time has no mark until somebody asks:
// those that only order streams, as FSDP's, leave the program of a step whole.
struct Event {
  int device = 0;
  util::Mutex mutex{util::Rank::Section};
  std::shared_ptr<const executor::Mark> mark;
};

std::shared_ptr<const executor::Mark> launched(int device) {
  executor::sync_device(device, false, executor::kSynchronize);
  return executor::InFlight::of(device).mark();
}

std::shared_ptr<const executor::Mark> mark_of(void* asked) {
  auto& event = *static_cast<Event*>(asked);
  {
    const std::lock_guard lock(event.mutex);
    if (event.mark != nullptr) return event.mark;
  }
  std::shared_ptr<const executor::Mark> mark = launched(event.device);
  const std::lock_guard lock(event.mutex);
  if (event.mark == nullptr) event.mark = std::move(mark);
  return event.mark;
}

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  at::DeviceType type() const override { return at::kXLA; }

  at::Device getDevice() const override { return device_at(executor::current_device()); }
  at::Device exchangeDevice(at::Device device) const override {
    const at::Device previous = getDevice();
    setDevice(device);
    return previous;
  }
  void setDevice(at::Device device) const override {
    if (device.has_index() && device.index() != executor::current_device()) {
      executor::set_current_device(device.index());
    }
  }
  void uncheckedSetDevice(at::Device device) const noexcept override {
    executor::exchange_current_device(device.has_index() ? device.index() : 0);
  }
  // Asking how many devices there are must not start a client.
  c10::DeviceIndex deviceCount() const noexcept override {
    executor::Runtime* runtime = executor::Runtime::get_if_made();
    return static_cast<c10::DeviceIndex>(runtime == nullptr ? 1 : runtime->device_count());
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    executor::sync_device(index_or_current(index), true, executor::kSynchronize);
  }

  c10::Stream getStream(at::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device_at(index_or_current(device.index())));
  }
  c10::Stream getDefaultStream(at::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(at::Device device, int) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool) const override {
    return getStream(device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getStream(stream.device());
  }
  bool queryStream(const c10::Stream& stream) const override {
    executor::sync_device(stream.device_index(), false, executor::kSynchronize);
    return executor::InFlight::of(stream.device_index()).idle();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    executor::sync_device(stream.device_index(), true, executor::kSynchronize);
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex,
              c10::EventFlag flag) const override {
    const bool is_timed = flag == c10::EventFlag::BACKEND_DEFAULT;
    std::shared_ptr<const executor::Mark> mark;
    if (is_timed) mark = launched(stream.device_index());
    if (*event == nullptr) *event = new Event;
    auto& recorded = *static_cast<Event*>(*event);
    const std::lock_guard lock(recorded.mutex);
    recorded.device = stream.device_index();
    recorded.mark = std::move(mark);
  }
  // A run that is launched later runs later anyway.
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override { return mark_of(event)->reached(); }
  void synchronizeEvent(void* event) const override { mark_of(event)->wait(); }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    const std::chrono::duration<double, std::milli> elapsed =
        mark_of(end)->time() - mark_of(start)->time();
    return elapsed.count();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(event);
  }
};

C10_REGISTER_GUARD_IMPL(XLA, GuardImpl);

}  // namespace
}  // namespace torch_xla::dispatch

namespace torch_xla::detail {

// PyTorch looks for hooks by this name, namespace included.
struct XLAHooks final : at::XLAHooksInterface {
  template <class... Arguments>
  explicit XLAHooks(const Arguments&...) {}  // before PyTorch 2.13 it is given an XLAHooksArgs

  void init() const override {}  // the client is made when the first device is needed
  bool hasXLA() const override { return true; }
  std::string showConfig() const override { return "torch_xla"; }

  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return executor::Runtime::get_if_made() != nullptr;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(executor::current_device());
  }
  at::Device getDeviceFromPtr(void*) const override {
    return dispatch::device_at(executor::current_device());
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return dispatch::default_generator(dispatch::index_or_current(index));
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    if (index >= 0) executor::require_device(index);
    return dispatch::new_generator(dispatch::index_or_current(index));
  }

  // No plugin takes some host memory faster than other: nothing is pinned, by whatever name.
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
};

}  // namespace torch_xla::detail

namespace at {
REGISTER_XLA_HOOKS(torch_xla::detail::XLAHooks);
}  // namespace at
