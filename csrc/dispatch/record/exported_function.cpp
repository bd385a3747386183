#include "dispatch/record/exported_function.h"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "dispatch/record/function_trace.h"
#include "executor/program/lower.h"
#include "executor/run/runtime.h"
#include "executor/step/read.h"
#include "lazy/function.h"
#include "lazy/source.h"
#include "lazy/tensor.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::KeptFunction;
using lazy::Node;
using lazy::Value;
using Tensors = std::vector<at::Tensor>;

thread_local bool exporting = false;

Value value_of(const at::Tensor& tensor) {
  const lazy::TensorImpl* impl = lazy::as_lazy(tensor);
  TXLA_CHECK_KIND(util::ErrorKind::Type, impl != nullptr,
                  "export: expected the function's results on xla, got one on ", tensor.device(),
                  ". Compute it from the arguments.");
  return impl->read();
}

struct Recorded {
  KeptFunction function;
  std::vector<Value> data;  // that it reads beside its arguments: the last parameters
};

// The function's arguments that it needs come first.
Recorded record(const Tensors& like, const std::vector<size_t>& kept,
                c10::function_ref<Tensors(const Tensors&)> body, int device, Exported& exported) {
  const FunctionTrace trace(device);
  const ExportScope scope;
  KeptFunction function;
  Tensors stand_ins;
  std::vector<Value> leaves;
  for (const at::Tensor& t : like) {
    leaves.push_back(
        lazy::placeholder(*lazy::intern_contiguous(t.scalar_type(), t.sizes()), device));
    stand_ins.push_back(lazy::make_tensor(
        leaves.back(), lazy::intern(t.scalar_type(), t.sizes(), t.strides()), device));
  }
  function.results = exported_values(body(stand_ins));
  for (size_t i = 0; i < stand_ins.size(); ++i) {
    const Value now = value_of(stand_ins[i]);
    if (now == leaves[i]) continue;
    exported.written.push_back(i);
    function.results.push_back(now);
  }
  std::unordered_set<const Node*> needed;
  KeptFunction all = function;
  const auto is_call = [](const Node&) { return true; };
  for (const Value& value : all.collect(is_call)) needed.insert(value.node.get());
  for (size_t i = 0; i < leaves.size(); ++i) {
    const bool is_kept = std::ranges::find(kept, i) != kept.end();
    if (!is_kept && !needed.contains(leaves[i].node.get())) continue;
    exported.arguments.push_back(i);
    function.add_parameter(leaves[i]);
  }
  std::vector<Value> data = function.collect(is_call);
  return {std::move(function), std::move(data)};
}

}  // namespace

ExportScope::ExportScope() { exporting = true; }

ExportScope::~ExportScope() {
  exporting = false;
  lazy::set_place({});
}

bool is_exporting() { return exporting; }

std::vector<Value> exported_values(const Tensors& results) {
  std::vector<Value> values;
  for (const at::Tensor& result : results) values.push_back(value_of(result));
  return values;
}

Exported export_function(const Tensors& like, const std::vector<size_t>& kept,
                         c10::function_ref<Tensors(const Tensors&)> body, bool with_locations,
                         bool dynamic_sizes) {
  const int device = executor::current_device();
  executor::require_device(device);
  const lazy::GraphLock lock;
  Exported exported;
  auto [function, data] = record(like, kept, body, device, exported);
  const Tensors constants = executor::download(data, device);
  exported.text = executor::lower_portable(function, constants, {with_locations, dynamic_sizes});
  return exported;
}

}  // namespace torch_xla::dispatch
