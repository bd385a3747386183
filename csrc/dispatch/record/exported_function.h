// Records a function of tensors that do not exist, and gives it as a program for every compiler:
// what torch_xla.stablehlo builds on.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "lazy/node.h"

namespace torch_xla::dispatch {

// What export_function gives.
struct Exported {
  std::string text;  // StableHLO
  // The stand-ins that the program takes, by their place among all: those that it needs, and
  // `kept`.
  std::vector<size_t> arguments;
  // The stand-ins that the function writes: their new values follow its results.
  std::vector<size_t> written;
};

// Runs `body` on stand-ins, tensors on xla of the dtypes, sizes and strides of `like` (of any
// device; their values are not read), and lowers what it records. Data on xla that it reads beside
// those are constants of the program, and so are numbers and random seeds. Throws what `body`
// throws, and where it needs values, runs calls on the host, or gives a tensor that is not of xla.
Exported export_function(
    const std::vector<at::Tensor>& like, const std::vector<size_t>& kept,
    c10::function_ref<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> body,
    bool with_locations, bool dynamic_sizes);

// Lives while this thread runs the `body` of an export.
class ExportScope {
 public:
  ExportScope();
  ~ExportScope();  // forgets the place that the recorder was given
  ExportScope(const ExportScope&) = delete;
  ExportScope& operator=(const ExportScope&) = delete;
};
bool is_exporting();

// The values of tensors that a function gives. Throws where one is not of xla.
std::vector<lazy::Value> exported_values(const std::vector<at::Tensor>& results);

}  // namespace torch_xla::dispatch
