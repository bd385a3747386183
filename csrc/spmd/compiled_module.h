// Reads what the compiler has decided from a compiled program's module, a serialized
// xla.HloModuleProto or, if `with_config`, an xla.HloModuleProtoWithConfig.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "spmd/sharding.h"

namespace torch_xla::spmd {

// Returns how the results are split: null where each device has the whole. Empty where the module
// does not tell.
std::vector<const Sharding*> read_output_shardings(std::string_view module, bool with_config,
                                                   const Mesh* mesh);

// An operation by which devices exchange data: "all-gather", and the bytes of its result on each.
struct Collective {
  std::string kind;
  int64_t bytes = 0;
};
std::vector<Collective> read_collectives(std::string_view module, bool with_config);

}  // namespace torch_xla::spmd
