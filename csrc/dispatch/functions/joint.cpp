#include "dispatch/functions/joint.h"

#include <algorithm>
#include <optional>

#include "dispatch/calls/plan.h"
#include "dispatch/functions/recording.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::Node;
using lazy::Value;

constexpr const char* kName = "recorded function";

// A call that costs little beside reading its operands, and is the same each time.
bool is_cheap(const Node& call) {
  const lazy::Operator& op = *call.signature().op;
  if (call.signature().num_seeds != 0) return false;
  const auto& returns = op.schema().returns();
  const bool is_view = !returns.empty() && returns[0].alias_info() != nullptr;
  return is_view || has_tag(op, at::Tag::pointwise);
}

}  // namespace

Joint::Joint(const Tensors& inputs, Body forward, Backward backward, bool recomputes) {
  const lazy::GraphLock lock;
  std::optional<int> device;
  const std::vector<Value> values = values_of(kName, inputs, device);
  TXLA_CHECK(device.has_value(), kName, ": expected at least one tensor, got none.");
  device_ = *device;
  RecordedFunction ahead, behind;
  std::vector<Value> read;  // values of captured tensors, which inputs may have for once
  {
    Recording recording(device_);
    recording.note_reads();
    Tensors arguments;
    for (const Value& value : values) {
      arguments.push_back(recording.placeholder(value.geometry().row_major()));
    }
    const Tensors found = forward(arguments);
    for (Value& value : values_of(kName, found, device)) recording.result(std::move(value));
    captured_ = recording.take_reads();
    read = values_of(kName, captured_, device);
    forward_results_ = result_geometries(found);

    const uint64_t boundary = lazy::id_boundary();
    std::vector<Value> leaves, gradients, residuals;
    Tensors tangents;
    for (size_t i = 0; i < found.size(); ++i) {
      if (!found[i].requires_grad()) continue;
      const Geometry* g = forward_results_[i]->row_major();
      Value leaf = lazy::placeholder(*g, device_);
      leaves.push_back(leaf);
      tangents.push_back(lazy::make_tensor(std::move(leaf), g, device_));
    }
    if (!tangents.empty()) {
      gradients = values_of(kName, backward(captured_, tangents), device);
    }
    const auto belongs = [&](const Node& node) {
      if (node.id() > boundary) return true;
      return recomputes && recording.has_made(node.id()) && is_cheap(node);
    };
    behind.function =
        std::make_shared<lazy::Function>(lazy::function_of(leaves, gradients, belongs, residuals));
    recording.check_unwritten(kName);
    size_t made = found.size();
    for (const Value& value : residuals) {
      size_t input = 0;
      while (input < values.size() && recording.parameter_value(input) != value) ++input;
      const auto outside = std::ranges::find(read, value);
      if (input < values.size()) {
        residuals_.push_back({true, input});
      } else if (outside != read.end()) {
        residuals_.push_back({true, values.size() + static_cast<size_t>(outside - read.begin())});
      } else {
        residuals_.push_back({false, made++});
        recording.result(value);
        forward_results_.push_back(value.geometry().row_major());
      }
    }
    behind.draws = recording.draws_of(*behind.function);
    if (behind.draws.num_used() == 0) behind.draws = {};  // the forward call draws for both
    ahead = recording.finish();
  }
  forward_ = Callable(ahead, values.size(), read);
  const lazy::Function& back = *behind.function;
  if (back.results.empty()) return;
  backward_ = Callable(behind, back.parameters.size());
  for (const lazy::Ref& result : back.results) {
    backward_results_.push_back(back.geometry(result).row_major());
  }
}

Tensors Joint::backward(Tensors residuals_and_gradients) const {
  const size_t first = std::min(residuals_.size(), residuals_and_gradients.size());
  std::ranges::rotate(residuals_and_gradients,
                      residuals_and_gradients.begin() + static_cast<std::ptrdiff_t>(first));
  return call(backward_, residuals_and_gradients, backward_results_);
}

Tensors Joint::call(const Callable& function, const Tensors& given,
                    const Geometries& results) const {
  TXLA_CHECK(function && given.size() == function.num_given(), kName, ": expected ",
             function.num_given(), " tensors, got ", given.size(), ".");
  const lazy::GraphLock lock;
  std::optional<int> same = device_;
  const auto node = function.call(values_of(kName, given, same), device_);
  return result_tensors(node, results, device_);
}

}  // namespace torch_xla::dispatch
