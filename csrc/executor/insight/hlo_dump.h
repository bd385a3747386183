// Gives a program as HLO: compiles it and reads what the compiler writes down before it optimizes.
// The executable is not kept.
#pragma once

#include <string>

namespace torch_xla::executor {

struct HloDump {
  std::string text;
  std::string module;  // a serialized xla.HloModuleProto
};

// Throws where the plugin does not follow `xla_dump_to`.
HloDump hlo_of(const std::string& stablehlo, int device);

}  // namespace torch_xla::executor
