#include "dispatch/record/joint.h"

#include <algorithm>
#include <optional>

#include "dispatch/calls/plan.h"
#include "lazy/signature.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::KeptFunction;
using lazy::Node;
using lazy::Storage;
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

std::vector<const Geometry*> geometries_of(const std::vector<Value>& results, size_t count) {
  std::vector<const Geometry*> all;
  for (size_t i = 0; i < count; ++i) {
    const Geometry& g = results[i].geometry();
    all.push_back(lazy::intern_contiguous(g.dtype, g.sizes));
  }
  return all;
}

}  // namespace

Joint::Joint(const Tensors& inputs, Body forward, Backward backward, bool recomputes) {
  const lazy::GraphLock lock;
  std::optional<int> device;
  const std::vector<Value> values = values_of(kName, inputs, device);
  TXLA_CHECK(device.has_value(), kName, ": expected at least one tensor, got none.");
  device_ = *device;
  auto back = std::make_shared<KeptFunction>();
  FunctionTrace::Recorded there, here;
  std::vector<Value> kept, read;  // values of captured tensors, which inputs may have for once
  std::vector<const Geometry*> results;
  {
    FunctionTrace trace(device_);
    auto reads = std::make_optional<lazy::ReadLog>();
    Tensors stand_ins;
    std::vector<Value> leaves;
    for (const Value& value : values) {
      const Geometry& g = value.geometry();
      stand_ins.push_back(trace.stand_in(lazy::intern_contiguous(g.dtype, g.sizes)));
      leaves.push_back(lazy::as_lazy(stand_ins.back())->lazy_storage().value());
    }
    const Tensors found = forward(stand_ins);
    for (Value& value : values_of(kName, found, device)) trace.result(std::move(value));
    captured_ = reads->tensors();
    reads.reset();
    read = values_of(kName, captured_, device);
    for (const at::Tensor& t : found) results.push_back(result_geometry(t));

    const uint64_t boundary = lazy::id_boundary();
    Tensors tangents;
    for (size_t i = 0; i < found.size(); ++i) {
      if (!found[i].requires_grad()) continue;
      const Geometry* g = lazy::intern_contiguous(results[i]->dtype, results[i]->sizes);
      Value leaf = lazy::placeholder(*g, device_);
      back->add_parameter(leaf);
      tangents.push_back(lazy::make_tensor(std::move(leaf), g, device_));
    }
    if (!tangents.empty()) {
      back->results = values_of(kName, backward(captured_, tangents), device);
    }
    kept = back->collect([&](const Node& node) {
      if (node.id() > boundary) return true;
      return recomputes && Storage::AsideScope::made_since(node.id()) && is_cheap(node);
    });
    trace.check_unwritten(kName);
    // What the backward pass takes, before the gradients.
    size_t made = found.size();
    for (const Value& value : kept) {
      const auto leaf = std::ranges::find(leaves, value);
      const auto outside = std::ranges::find(read, value);
      if (leaf != leaves.end()) {
        kept_.push_back({true, static_cast<size_t>(leaf - leaves.begin())});
      } else if (outside != read.end()) {
        kept_.push_back({true, leaves.size() + static_cast<size_t>(outside - read.begin())});
      } else {
        kept_.push_back({false, made++});
        trace.result(value);
        results.push_back(lazy::intern_contiguous(value.geometry().dtype, value.geometry().sizes));
      }
    }
    here.draws = trace.draws_of(*back);
    if (here.draws.num_used() == 0) here.draws = {};  // the forward call draws for both
    there = trace.finish();
  }

  forward_.signature = there.signature();
  forward_.draws = std::move(there.draws);
  forward_.results = std::move(results);
  forward_.num_given = values.size() + read.size();
  for (size_t i = 0; i < values.size(); ++i) forward_.places.push_back(i);
  for (const Value& value : there.captured) {
    const auto place = std::ranges::find(read, value);
    forward_.places.push_back(values.size() + static_cast<size_t>(place - read.begin()));
    if (place != read.end()) continue;
    forward_.places.back() += forward_.constants.size();
    forward_.constants.push_back(
        c10::make_intrusive<Storage>(&value.geometry(), value.node->device(), value));
  }

  if (back->results.empty()) return;
  here.function = back;
  backward_.signature = here.signature();
  backward_.draws = std::move(here.draws);
  backward_.results = geometries_of(back->results, back->results.size());
  backward_.num_given = back->parameters.size();
  const size_t num_tangents = back->parameters.size() - kept.size();
  for (size_t i = 0; i < num_tangents; ++i) backward_.places.push_back(kept.size() + i);
  for (size_t i = 0; i < kept.size(); ++i) backward_.places.push_back(i);
}

Tensors Joint::Part::call(const Tensors& given, int device) const {
  TXLA_CHECK(signature.defined() && given.size() == num_given, kName, ": expected ", num_given,
             " tensors, got ", given.size(), ".");
  const lazy::GraphLock lock;
  std::optional<int> same = device;
  const std::vector<Value> values = values_of(kName, given, same);
  lazy::Operands operands;
  for (const size_t place : places) {
    operands.push_back(place < num_given ? values[place] : constants[place - num_given]->value());
    const Geometry& got = operands.back().geometry();
    const Geometry& expected = *signature->operands[operands.size() - 1].geometry;
    TXLA_CHECK(got.dtype == expected.dtype && got.sizes == expected.sizes, kName,
               ": expected tensors of the shapes that it was recorded for.");
  }
  const auto node = lazy::make_node(signature, std::move(operands), draws.draw(device), device);
  Tensors made;
  for (uint32_t i = 0; i < results.size(); ++i) {
    made.push_back(lazy::make_tensor({node, i}, results[i], device));
  }
  return made;
}

}  // namespace torch_xla::dispatch
