#include "dispatch/functions/exported_function.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "dispatch/functions/recording.h"
#include "executor/program/lower.h"
#include "executor/run/runtime.h"
#include "executor/step/read.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Node;
using lazy::Value;

Value value_of(const at::Tensor& tensor) {
  const lazy::TensorImpl* impl = lazy::as_lazy(tensor);
  TXLA_CHECK_KIND(util::ErrorKind::Type, impl != nullptr,
                  "export: expected the function's results on xla, got one on ", tensor.device(),
                  ". Compute it from the arguments.");
  return impl->read();
}

// Returns the function, whose arguments that it needs come first, and all that it reads beside
// them. Calls that wait to be computed are calls of the program.
RecordedFunction record_whole(const Tensors& like, const std::vector<size_t>& kept, Body body,
                              int device, ExportedFunction& exported) {
  Recording recording(device, {.is_export = true});
  Tensors arguments;
  for (const at::Tensor& t : like) {
    arguments.push_back(
        recording.placeholder(lazy::intern(t.scalar_type(), t.sizes(), t.strides())));
  }
  std::vector<Value> results = exported_values(body(arguments));
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Value now = value_of(arguments[i]);
    if (now == recording.parameter_value(i)) continue;
    exported.written.push_back(i);
    results.push_back(now);
  }
  const lazy::Walk all = lazy::walk_of(results);
  const std::unordered_set<const Node*> needed(all.parameters.begin(), all.parameters.end());
  std::vector<Value> parameters;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Value& leaf = recording.parameter_value(i);
    const bool is_kept = std::ranges::find(kept, i) != kept.end();
    if (!is_kept && !needed.contains(leaf.node.get())) continue;
    exported.arguments.push_back(i);
    parameters.push_back(leaf);
  }
  RecordedFunction recorded;
  const auto is_call = [](const Node&) { return true; };
  recorded.function = std::make_shared<lazy::Function>(
      lazy::function_of(parameters, results, is_call, recorded.captured));
  return recorded;
}

}  // namespace

std::vector<Value> exported_values(const Tensors& results) {
  std::vector<Value> values;
  for (const at::Tensor& result : results) values.push_back(value_of(result));
  return values;
}

ExportedFunction export_function(const Tensors& like, const std::vector<size_t>& kept, Body body,
                                 bool with_locations, bool dynamic_sizes) {
  const int device = executor::current_device();
  executor::require_device(device);
  const lazy::GraphLock lock;
  ExportedFunction exported;
  RecordedFunction recorded = record_whole(like, kept, body, device, exported);
  const Tensors constants = executor::download(recorded.captured, device);
  exported.text =
      executor::lower_portable(*recorded.function, constants, {with_locations, dynamic_sizes});
  return exported;
}

}  // namespace torch_xla::dispatch
