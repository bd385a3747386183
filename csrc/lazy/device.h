// Device, a logical device of this process (xla:0, xla:1, ..). It holds the list of storages that
// wait to be computed, the random state, and the objects that higher layers keep for the device. It
// exists before the plugin's devices do.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "lazy/rng.h"

namespace torch_xla::lazy {

class Storage;

class Device {
 public:
  static constexpr int kMost = 256;  // PyTorch's index of a device has 8 bits
  static Device& of(int index);

  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  // Storages whose value waits to be computed, in the order in which they were last written.
  // Guarded by GraphLock.
  Storage* first_pending = nullptr;
  Storage* last_pending = nullptr;
  // `step` counts the launches of all that waited; the other is its value at the last backward pass
  // of torch.compile (dispatch/functions/launching.h). Guarded by GraphLock.
  uint64_t step = 0;
  uint64_t step_of_backward = ~uint64_t{0};

  std::atomic<int64_t> live_storages{0};
  RandomState random;

  // Holds an object that a higher layer keeps for the device; the first get() makes it.
  class Slot {
   public:
    template <class T, class Make>
    T& get(const Make& make) {
      std::call_once(made_, [&] { object_ = std::shared_ptr<T>(make()); });
      return *static_cast<T*>(object_.get());
    }

   private:
    std::once_flag made_;
    std::shared_ptr<void> object_;
  };
  Slot runs;       // executor/run/in_flight.h
  Slot generator;  // dispatch/device/generator.h
};

}  // namespace torch_xla::lazy
