// Internal to csrc/pjrt: what both clients and topologies ask of the plugin.
#pragma once

#include <string_view>

#include "pjrt/client.h"

namespace torch_xla::pjrt {

DeviceDescription read_description(const Plugin& plugin, PJRT_DeviceDescription* handle);

// The form in which programs are compiled; points into `stablehlo`.
PJRT_Program stablehlo_program(std::string_view stablehlo);

}  // namespace torch_xla::pjrt
