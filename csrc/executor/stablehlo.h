// Compiles and runs programs that come as StableHLO and not as recorded calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "executor/program.h"

namespace torch_xla::executor {

// Compiles `stablehlo`, text or a portable artifact, for a device. The program takes row-major
// arrays of these geometries and reuses none of them.
std::shared_ptr<const Program> compile_stablehlo(std::string name, const std::string& stablehlo,
                                                 const std::vector<const lazy::Geometry*>& takes,
                                                 int device);

// Launches it, after what its arguments still need, and returns its results as data.
std::vector<lazy::Value> run_stablehlo(const Program& program, std::vector<lazy::Value> arguments,
                                       int device);

}  // namespace torch_xla::executor
