// Compiles and runs programs that come as StableHLO and not as recorded calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/program/program.h"

namespace torch_xla::executor {

// Compiles `stablehlo`, text or a portable artifact, for a device. The program takes row-major
// arrays; it says itself which of them it reuses, as `takes` does.
std::shared_ptr<const Program> compile_stablehlo(std::string name, const std::string& stablehlo,
                                                 std::vector<Parameter> takes, int device);

// Launches it, after what its arguments still need, and returns its results as data. It reuses the
// arrays that only one storage holds besides the caller.
std::vector<lazy::Value> run_stablehlo(const Program& program, std::vector<lazy::Value> arguments,
                                       int device);

}  // namespace torch_xla::executor
