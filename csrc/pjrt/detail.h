// Internal to csrc/pjrt: functions that clients and topologies share.
#pragma once

#include <string_view>

#include "pjrt/device.h"

namespace torch_xla::pjrt {

DeviceDescription read_description(const Plugin& plugin, PJRT_DeviceDescription* handle);

// Gives a program in the form that the C API compiles; the result points into `stablehlo`.
PJRT_Program stablehlo_program(std::string_view stablehlo);

}  // namespace torch_xla::pjrt
