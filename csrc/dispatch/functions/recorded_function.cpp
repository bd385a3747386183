#include "dispatch/functions/recorded_function.h"

#include <algorithm>
#include <numeric>

#include <torch/library.h>

#include "dispatch/calls/plan.h"
#include "dispatch/replicas/order.h"
#include "lazy/operator.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::Node;
using lazy::Storage;
using lazy::Value;

TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  m.def("traced_function(Tensor[] storages, str function) -> Tensor[]");
}

}  // namespace

std::vector<Value> values_of(const char* name, const Tensors& tensors, std::optional<int>& device) {
  std::vector<Value> values;
  for (const at::Tensor& t : tensors) {
    const at::Tensor plain = t.resolve_conj().resolve_neg();
    const lazy::TensorImpl* impl = lazy::as_lazy(plain);
    TXLA_CHECK(impl != nullptr, name, ": expected xla tensors, got one on ", t.device(),
               ". Move it with .to('xla') first.");
    if (!device) device = impl->device_index();
    TXLA_CHECK(impl->device_index() == *device, name,
               ": expected tensors of one device, got xla:", *device,
               " and xla:", impl->device_index(), ".");
    values.push_back(impl->read());
  }
  return values;
}

Geometries result_geometries(const Tensors& tensors) {
  Geometries all;
  for (const at::Tensor& t : tensors) {
    const Geometry* g = lazy::as_lazy(t)->geometry();
    all.push_back(g->layout.non_overlapping_and_dense ? g : g->row_major());
  }
  return all;
}

FunctionCall::FunctionCall(const char* op) : builder_(*find_operator(lazy::operator_name(op))) {}

void FunctionCall::operand(const Value& value) {
  builder_.tensor(&value.geometry());
  operands_.push_back(value);
}

void FunctionCall::list(const std::vector<Value>& values) {
  builder_.begin_list(values.size());
  for (const Value& value : values) operand(value);
}

void FunctionCall::list(const Geometries& operands) {
  builder_.begin_list(operands.size());
  for (const Geometry* geometry : operands) builder_.tensor(geometry);
}

void FunctionCall::regions(std::vector<std::shared_ptr<const lazy::Function>> functions) {
  std::string hashes;
  for (const auto& f : functions) hashes += (hashes.empty() ? "" : " ") + f->hash().hex();
  builder_.fixed(c10::IValue(std::move(hashes)));
  regions_ = std::move(functions);
}

void FunctionCall::expansion(std::shared_ptr<const lazy::Function> function) {
  builder_.fixed(c10::IValue(function->hash().hex()));
  expansion_ = std::move(function);
}

c10::intrusive_ptr<lazy::Signature> FunctionCall::signature(const Geometries& results,
                                                            size_t num_seeds) {
  for (size_t i = 0; i < num_seeds; ++i) builder_.seed();
  for (const Geometry* g : results) builder_.output(g->row_major());
  auto signature = builder_.build();
  signature->regions = std::move(regions_);
  signature->expansion = std::move(expansion_);
  return signature;
}

c10::intrusive_ptr<Node> FunctionCall::record(const Geometries& results, lazy::Numbers&& seeds,
                                              int device) {
  return lazy::make_node(lazy::intern(signature(results, seeds.size())), std::move(operands_),
                         std::move(seeds), device);
}

Tensors result_tensors(const c10::intrusive_ptr<Node>& node, const Geometries& geometries,
                       int device) {
  Tensors results;
  for (uint32_t i = 0; i < geometries.size(); ++i) {
    results.push_back(lazy::make_tensor({node, i}, geometries[i], device));
  }
  return results;
}

Callable::Callable(const RecordedFunction& recorded, size_t num_given,
                   const std::vector<Value>& also_given)
    : draws_(recorded.draws),
      num_given_(num_given + also_given.size()),
      places_(num_given),
      exchanges_(static_cast<bool>(recorded.order)) {
  FunctionCall call("torch_xla::traced_function");
  const lazy::Function& function = *recorded.function;
  call.list(function.parameters);
  call.expansion(recorded.function);
  Geometries results;
  for (const lazy::Ref& result : function.results) results.push_back(&function.geometry(result));
  signature_ = lazy::intern(call.signature(results, draws_.num_used()));
  std::iota(places_.begin(), places_.end(), size_t{0});
  for (const Value& value : recorded.captured) {
    if (value == recorded.order) {
      places_.push_back(kOrder);
      continue;
    }
    const auto given = std::ranges::find(also_given, value);
    if (given != also_given.end()) {
      places_.push_back(num_given + static_cast<size_t>(given - also_given.begin()));
      continue;
    }
    places_.push_back(num_given_ + constants_.size());
    constants_.push_back(
        c10::make_intrusive<Storage>(&value.geometry(), value.node->device(), value));
  }
}

c10::intrusive_ptr<Node> Callable::call(const std::vector<Value>& given, int device) const {
  lazy::Operands operands;
  for (size_t i = 0; i < places_.size(); ++i) {
    const size_t place = places_[i];
    if (place == kOrder) {
      operands.push_back(read_order(device));
    } else {
      operands.push_back(place < num_given_ ? given[place]
                                            : constants_[place - num_given_]->value());
    }
    const Geometry &is = operands.back().geometry(), &expected = *signature_->operands[i].geometry;
    TXLA_CHECK(&is == &expected || (is.dtype == expected.dtype && is.sizes == expected.sizes),
               "recorded function: expected tensors of the shapes that it was recorded for.");
  }
  auto node = lazy::make_node(signature_, std::move(operands), draws_.draw(device), device);
  if (exchanges_) write_order(device, {node, static_cast<uint32_t>(node->num_outputs() - 1)});
  return node;
}

}  // namespace torch_xla::dispatch
