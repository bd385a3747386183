// Reads what the compiler has decided from a compiled program's module, a serialized
// xla.HloModuleProto or, if `with_config`, an xla.HloModuleProtoWithConfig.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "spmd/sharding.h"

namespace torch_xla::spmd {

// Returns how the results are split: null where each device has the whole. Empty where the module
// does not tell.
std::vector<const Sharding*> read_output_shardings(std::string_view module, bool with_config,
                                                   const Mesh* mesh);

// Returns the types of a program's arguments as StableHLO writes them, "tensor<2x3xf32>"; empty
// where the module does not tell, or where one has a type that StableHLO lacks.
std::vector<std::string> read_argument_types(std::string_view module, bool with_config);

// The purpose of an instruction, "Model.forward/aten::mm", and the line of the program that it
// comes from, "file:line"; empty where the compiler does not tell.
struct Origin {
  std::string operation, line;
};
// Returns those of all instructions that have one, by their names.
std::map<std::string, Origin> read_origins(std::string_view module, bool with_config);

// An operation by which devices exchange data.
struct Collective {
  std::string kind;   // "all-gather"
  int64_t bytes = 0;  // of its result, on each device
  int64_t times = 1;  // how often a run does it, for the loops around it
  // The devices that exchange; pairs of a sender and a receiver where the kind permutes.
  std::vector<std::vector<int64_t>> groups = {};
  Origin origin = {};
};
std::vector<Collective> read_collectives(std::string_view module, bool with_config);

// Returns the clock cycles that the compiler expects a run's kernels to take, those in loops as
// often as they run. Of collectives, and of some kernels, such as gathers, it expects none; 0 where
// it never does. Compilers of TPUs do.
double read_cycles(std::string_view module, bool with_config);

}  // namespace torch_xla::spmd
