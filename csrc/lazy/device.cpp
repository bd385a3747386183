#include "lazy/device.h"

#include <array>

namespace torch_xla::lazy {

Device& Device::of(int index) {
  // Outlives static destructors that still hold tensors.
  static auto& devices = *new std::array<Device, kMost>;
  return devices[static_cast<size_t>(index)];
}

}  // namespace torch_xla::lazy
