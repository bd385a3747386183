// Tells PyTorch that xla devices exist: the current device per thread, and one stream for each.
#include <ATen/detail/XLAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "executor/runtime.h"
#include "executor/sync.h"

namespace torch_xla::dispatch {
namespace {

at::Device device_at(int index) {
  return at::Device(at::kXLA, static_cast<c10::DeviceIndex>(index));
}

// Work on an xla device is ordered by the data it uses, so one stream per device is enough.
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
  c10::Stream getStream(at::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream getDefaultStream(at::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(at::Device device, int) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return getStream(stream.device());
  }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    executor::wait_device(stream.device_index());
  }
  void synchronizeDevice(c10::DeviceIndex index) const override { executor::wait_device(index); }
  // Asking how many devices there are must not start a client.
  c10::DeviceIndex deviceCount() const noexcept override {
    executor::Runtime* runtime = executor::Runtime::get_if_made();
    return static_cast<c10::DeviceIndex>(runtime == nullptr ? 1 : runtime->device_count());
  }
};

C10_REGISTER_GUARD_IMPL(XLA, GuardImpl);

using at::RegistererXLAHooksRegistry;
using at::XLAHooksRegistry;

struct Hooks final : at::XLAHooksInterface {
  explicit Hooks(at::XLAHooksArgs) {}
  Hooks() = default;
  void init() const override {}
  bool hasXLA() const override { return true; }
  std::string showConfig() const override { return "torch_xla"; }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(executor::current_device());
  }
  at::Device getDeviceFromPtr(void*) const override {
    return device_at(executor::current_device());
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return executor::Runtime::get_if_made() != nullptr;
  }
};

REGISTER_XLA_HOOKS(Hooks);

}  // namespace
}  // namespace torch_xla::dispatch
