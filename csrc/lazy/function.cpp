#include "lazy/function.h"

#include <unordered_map>
#include <utility>

#include "lazy/operator.h"
#include "lazy/print.h"

namespace torch_xla::lazy {

size_t Function::num_seeds() const {
  size_t count = 0;
  for (const Call& call : calls) count += call.signature->num_seeds;
  return count;
}

Function::Call& Function::add(const c10::intrusive_ptr<const Signature>& signature,
                              const Source& source, std::span<const Ref> of,
                              std::span<const Number> with) {
  const auto ordinal = static_cast<uint32_t>(calls.size());
  calls.push_back({signature, source, ordinal, static_cast<uint32_t>(operands.size()),
                   static_cast<uint32_t>(of.size()), static_cast<uint32_t>(numbers.size())});
  operands.insert(operands.end(), of.begin(), of.end());
  numbers.insert(numbers.end(), with.begin(), with.end());
  return calls.back();
}

util::Hash128 Function::hash() const {
  FunctionKey key;
  for (const Geometry* parameter : parameters) key.parameter(*parameter);
  for (const Call& call : calls) {
    key.call(*call.signature);
    for (const Ref& operand : operands_of(call)) key.value(operand.index, operand.result);
    const std::span<const Number> of_call = numbers_of(call);
    for (size_t i = 0; i < of_call.size(); ++i) {
      if (!call.signature->is_seed(i)) key.constant(i, of_call[i]);
    }
  }
  for (const Ref& result : results) key.value(result.index, result.result);
  return key.hasher().finish();
}

std::vector<std::string> Function::lines() const {
  std::vector<std::string> lines;
  for (const Call& call : calls) {
    std::string given;
    for (const Ref& operand : operands_of(call)) {
      given += (given.empty() ? "%" : ", %") + std::to_string(operand.index);
      if (operand.result != 0) given += "." + std::to_string(operand.result);
    }
    std::string& line = lines.emplace_back("%" + std::to_string(index_of(lines.size())) + " = ");
    line += call.signature->op->name + "(" + given + ") : " + types_of(call.signature->outputs);
    if (const std::string place = call.source.str(); !place.empty()) line += "  // " + place;
  }
  return lines;
}

Function function_of(const Walk& walk) {
  Function function;
  walk.nodes.retake();
  std::vector<uint32_t> index(walk.nodes.size());  // by place
  const auto ref_of = [&](const Value& value) -> Ref {
    return {index[value.node->place], value.index};
  };
  function.parameters.reserve(walk.parameters.size());
  for (const Node* parameter : walk.parameters) {
    index[parameter->place] = static_cast<uint32_t>(function.parameters.size());
    function.parameters.push_back(&parameter->output(0));
  }
  function.calls.reserve(walk.calls.size());
  std::vector<Ref> operands;
  for (const Node* call : walk.calls) {
    operands.clear();
    for (const Value& operand : call->operands()) operands.push_back(ref_of(operand));
    index[call->place] = function.index_of(function.calls.size());
    function.add(call->shared_signature(), call->source(), operands, call->numbers()).ordinal =
        call->place;
  }
  for (const Value& result : walk.results) function.results.push_back(ref_of(result));
  return function;
}

namespace {

struct ValueHasher {
  size_t operator()(const Value& v) const {
    return std::hash<const Node*>()(v.node.get()) ^ (size_t{v.index} << 48);
  }
};

}  // namespace

Function function_of(std::span<const Value> parameters, std::span<const Value> results,
                     c10::function_ref<bool(const Node&)> belongs, std::vector<Value>& captured) {
  constexpr uint32_t kCall = uint32_t{1} << 31;  // how many parameters come first is known later
  Function function;
  std::unordered_map<Value, uint32_t, ValueHasher> leaves;
  std::unordered_map<const Node*, uint32_t> calls;
  const auto add_parameter = [&](const Value& value) {
    leaves.emplace(value, static_cast<uint32_t>(function.parameters.size()));
    function.parameters.push_back(value.geometry().row_major());
  };
  for (const Value& parameter : parameters) add_parameter(parameter);
  const auto enter = [&](const Value& value) {
    if (!value || calls.contains(value.node.get()) || leaves.contains(value)) return false;
    if (!value.node->is_data() && belongs(*value.node)) return true;
    captured.push_back(value);
    add_parameter(value);
    return false;
  };
  const auto ref_of = [&](const Value& value) -> Ref {
    if (!value) return {};
    const auto leaf = leaves.find(value);
    if (leaf != leaves.end()) return {leaf->second, 0};
    return {kCall | calls.at(value.node.get()), value.index};
  };
  const auto leave = [&](const Node& call) {
    std::vector<Ref> operands;
    for (const Value& operand : call.operands()) operands.push_back(ref_of(operand));
    calls.emplace(&call, static_cast<uint32_t>(calls.size()));
    function.add(call.shared_signature(), call.source(), operands, call.numbers());
  };
  lazy::visit(results, enter, leave);
  for (const Value& result : results) function.results.push_back(ref_of(result));
  for (auto* refs : {&function.operands, &function.results}) {
    for (Ref& r : *refs) {
      if (r && (r.index & kCall) != 0) r.index = function.index_of(r.index & ~kCall);
    }
  }
  return function;
}

Function open(const Function& function, c10::function_ref<bool(const Signature&)> is_large,
              std::vector<size_t>* opened) {
  Function open;
  open.parameters = function.parameters;
  // The values in place of those of a function, by index and result.
  using Standing = std::vector<std::vector<Ref>>;
  const auto inside = [](const Standing& standing, const Ref& r) {
    return r ? standing[r.index][r.result] : r;
  };
  const auto copy = [&](const Function& of, const Function::Call& call, Standing& standing) {
    std::vector<Ref> operands;
    for (const Ref& operand : of.operands_of(call)) operands.push_back(inside(standing, operand));
    std::vector<Ref>& results = standing.emplace_back();
    for (uint32_t k = 0; k < call.signature->outputs.size(); ++k) {
      results.push_back({open.index_of(open.calls.size()), k});
    }
    open.add(call.signature, call.source, operands, of.numbers_of(call));
  };
  Standing outer;
  for (uint32_t i = 0; i < function.parameters.size(); ++i) outer.push_back({{i, 0}});
  for (const Function::Call& call : function.calls) {
    if (opened != nullptr) opened->push_back(open.calls.size());
    if (!is_large(*call.signature)) {
      copy(function, call, outer);
      continue;
    }
    const Function& expansion = *call.signature->expansion;
    Standing inner;
    for (const Ref& operand : function.operands_of(call)) inner.push_back({inside(outer, operand)});
    for (const Function::Call& part : expansion.calls) copy(expansion, part, inner);
    std::vector<Ref>& results = outer.emplace_back();
    for (const Ref& result : expansion.results) results.push_back(inside(inner, result));
  }
  if (opened != nullptr) opened->push_back(open.calls.size());
  for (const Ref& result : function.results) open.results.push_back(inside(outer, result));
  return open;
}

namespace {

Numbers copy_of(std::span<const Number> numbers) {
  Numbers copy;
  for (const Number& number : numbers) copy.push_back(number);
  return copy;
}

}  // namespace

Value placeholder(const Geometry& geometry, int device) {
  return {c10::make_intrusive<Node>(intern_contiguous(geometry.dtype, geometry.sizes), device,
                                    DeviceData{}),
          0};
}

c10::intrusive_ptr<Node> instantiate(const Function::Call& call, Operands&& operands,
                                     std::span<const Number> numbers, int device) {
  auto node =
      c10::make_intrusive<Node>(call.signature, std::move(operands), copy_of(numbers), device);
  node->source() = call.source;
  return node;
}

Instance instantiate(const Function& function, std::span<const Value> parameters,
                     std::span<const Number> numbers, int device,
                     std::span<const c10::intrusive_ptr<Node>> places) {
  Instance instance;
  const auto value_of = [&](const Ref& r) -> Value {
    if (!r) return {};
    return function.is_parameter(r) ? parameters[r.index]
                                    : Value{instance.calls[function.call_of(r)], r.result};
  };
  for (size_t c = 0; c < function.calls.size(); ++c) {
    const Function::Call& call = function.calls[c];
    Operands operands;
    for (const Ref& operand : function.operands_of(call)) operands.push_back(value_of(operand));
    const auto own = numbers.subspan(call.first_number, call.signature->numbers.size());
    c10::intrusive_ptr<Node> node = places.empty() ? nullptr : places[c];
    if (node.defined()) {
      node->become_call(call.signature, std::move(operands), copy_of(own));
      node->source() = call.source;
    } else {
      node = instantiate(call, std::move(operands), own, device);
    }
    instance.calls.push_back(std::move(node));
  }
  for (const Ref& result : function.results) instance.results.push_back(value_of(result));
  return instance;
}

}  // namespace torch_xla::lazy
