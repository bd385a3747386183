// Records a function of tensors that do not exist, and gives it as a program for every compiler:
// what torch_xla.stablehlo builds on.
#pragma once

#include <string>
#include <vector>

#include "dispatch/functions/recorded_function.h"

namespace torch_xla::dispatch {

struct ExportedFunction {
  std::string text;  // StableHLO
  // The placeholders that the program takes, by their positions among all: those that it needs, and
  // `kept`.
  std::vector<size_t> arguments;
  // The placeholders that the function writes: their new values follow its results.
  std::vector<size_t> written;
};

// Runs `body` on placeholders, tensors on xla of the dtypes, sizes and strides of `like` (of any
// device; their values are not read), and lowers what it records. Data on xla that it reads beside
// those are constants of the program, and so are numbers and random seeds. Throws what `body`
// throws, and where it needs values, runs calls on the host, or gives a tensor that is not of xla.
ExportedFunction export_function(const Tensors& like, const std::vector<size_t>& kept, Body body,
                                 bool with_locations, bool dynamic_sizes);

// Returns the values of tensors that are results of a program for others. Throws where one is not
// of xla.
std::vector<lazy::Value> exported_values(const Tensors& results);

}  // namespace torch_xla::dispatch
