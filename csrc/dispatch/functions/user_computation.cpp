#include "dispatch/functions/user_computation.h"

#include <optional>

#include <torch/library.h>

#include "executor/program/lower.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::Value;

constexpr const char* kCall = "torch_xla::user_computation";

TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  // `options` are names and texts by turns, `functions` the hashes of the computations among them.
  m.def("user_operation(Tensor[] operands, str name, str[] options, str functions) -> Tensor[]");
  m.def("user_computation(Tensor[] inputs, str name, str function) -> Tensor[]");
}

UserShape array_of(const Geometry* g) { return {g, {}}; }

UserShape tuple_of(std::vector<UserShape> parts) { return {nullptr, std::move(parts)}; }

void append_arrays(const UserShape& shape, std::vector<const Geometry*>& all) {
  if (shape.array != nullptr) all.push_back(shape.array);
  for (const UserShape& part : shape.parts) append_arrays(part, all);
}

size_t count_of(const UserShape& shape) { return shape.arrays().size(); }

std::string described(const Geometry& g) {
  std::string text = ops::xla_name(g.dtype) + "[";
  for (size_t i = 0; i < g.sizes.size(); ++i) {
    text += (i == 0 ? "" : ",") + std::to_string(g.sizes[i]);
  }
  return text + "]";
}

// An element of a tuple.
UserValue element_of(const UserValue& tuple, int64_t index) {
  const auto count = static_cast<int64_t>(tuple.shape.parts.size());
  TXLA_CHECK(tuple.shape.array == nullptr, "xla_builder: GetTupleElement: expected a tuple, got ",
             tuple.shape.str(), ".");
  TXLA_CHECK(index >= 0 && index < count, "xla_builder: GetTupleElement: expected an index in [0, ",
             count, "), got ", index, ".");
  auto first = tuple.values.begin();
  for (int64_t i = 0; i < index; ++i) {
    first += static_cast<int64_t>(count_of(tuple.shape.parts[i]));
  }
  const UserShape& part = tuple.shape.parts[index];
  return {tuple.builder, part, {first, first + static_cast<int64_t>(count_of(part))}};
}

// A computation that is given under this name, with what it takes.
const UserComputation* taking(const UserBuilder::Computations& computations, const char* option,
                              const std::vector<UserShape>& shapes) {
  const auto found = computations.find(option);
  if (found == computations.end()) return nullptr;  // its rule says so
  const UserComputation& c = *found->second;
  TXLA_CHECK(tuple_of(c.parameters).str() == tuple_of(shapes).str(), "xla_builder: ", option,
             ": expected a computation that takes ", tuple_of(shapes).str(), ", got ", c.name,
             ", which takes ", tuple_of(c.parameters).str(), ".");
  return &c;
}

// The shape of what an operation gives where its arrays make up a tuple that is known.
std::optional<UserShape> tuple_result(const std::string& name,
                                      const std::vector<UserValue>& operands,
                                      const UserBuilder::Computations& computations) {
  std::vector<UserShape> shapes;
  for (const UserValue& operand : operands) shapes.push_back(operand.shape);
  if (name == "While" && shapes.size() == 1) {
    taking(computations, "condition_computation", shapes);
    const UserComputation* body = taking(computations, "body_computation", shapes);
    TXLA_CHECK(body == nullptr || body->result.str() == shapes[0].str(),
               "xla_builder: While: expected a body that gives ", shapes[0].str(), ", got ",
               body->name, ", which gives ", body->result.str(), ".");
    return shapes[0];
  }
  if (name == "Conditional" && shapes.size() == 3) {
    const UserComputation* yes = taking(computations, "true_computation", {shapes[1]});
    const UserComputation* no = taking(computations, "false_computation", {shapes[2]});
    if (yes == nullptr || no == nullptr) return std::nullopt;
    TXLA_CHECK(yes->result.str() == no->result.str(),
               "xla_builder: Conditional: expected branches that give the same shapes, got ",
               yes->result.str(), " and ", no->result.str(), ".");
    return yes->result;
  }
  if (name == "Call") {
    const UserComputation* called = taking(computations, "computation", shapes);
    if (called != nullptr) return called->result;
  }
  return std::nullopt;
}

}  // namespace

std::vector<const Geometry*> UserShape::arrays() const {
  std::vector<const Geometry*> all;
  append_arrays(*this, all);
  return all;
}

std::string UserShape::str() const {
  if (array != nullptr) return described(*array);
  std::string text = "(";
  for (const UserShape& part : parts) text += (text == "(" ? "" : ", ") + part.str();
  return text + ")";
}

std::string UserComputation::text() const { return executor::lower_portable(*function); }

UserValue UserBuilder::parameter(int64_t number, const UserShape& shape) {
  TXLA_CHECK(number >= 0, "xla_builder: mkparam: expected a number from 0 on, got ", number, ".");
  Parameter parameter{shape, {}};
  for (const Geometry* g : shape.arrays()) parameter.leaves.push_back(lazy::placeholder(*g, 0));
  const auto [place, is_new] = parameters_.emplace(number, std::move(parameter));
  TXLA_CHECK(is_new, "xla_builder: mkparam: expected a number that no parameter has, got ", number,
             ".");
  return {shared_from_this(), shape, place->second.leaves};
}

UserValue UserBuilder::operation(const std::string& name, const std::vector<UserValue>& operands,
                                 ops::UserOptions::Texts options,
                                 const Computations& computations) {
  for (const UserValue& operand : operands) {
    TXLA_CHECK(operand.builder.get() == this, "xla_builder: ", name,
               ": expected operands of the builder '", name_, "', got one of another builder.");
  }
  if (name == "Tuple") {
    UserValue tuple{shared_from_this(), {}, {}};
    for (const UserValue& operand : operands) {
      tuple.shape.parts.push_back(operand.shape);
      tuple.values.insert(tuple.values.end(), operand.values.begin(), operand.values.end());
    }
    return tuple;
  }
  if (name == "GetTupleElement" && operands.size() == 1) {
    return element_of(operands[0], ops::UserOptions(options).integer("index"));
  }

  const bool takes_tuples = name == "While" || name == "Conditional" || name == "Call";
  std::string counts;
  std::vector<Value> values;
  for (const UserValue& operand : operands) {
    TXLA_CHECK(takes_tuples || operand.shape.array != nullptr, "xla_builder: ", name,
               ": expected arrays, got ", operand.shape.str(), ". Take its elements.");
    counts += (counts.empty() ? "" : ",") + std::to_string(operand.values.size());
    values.insert(values.end(), operand.values.begin(), operand.values.end());
  }
  if (takes_tuples) options["counts"] = counts;
  std::vector<std::shared_ptr<const lazy::Function>> regions;
  for (const auto& [option, computation] : computations) {
    options[option] = std::to_string(regions.size());
    regions.push_back(computation->function);
  }
  const std::optional<UserShape> tuple = tuple_result(name, operands, computations);

  const lazy::GraphLock lock;
  const auto call = [&] {
    FunctionCall made(ops::kUserOperation);
    made.list(values);
    made.fixed(c10::IValue(name));
    made.fixed(ops::UserOptions(options).list());
    made.regions(regions);
    return made;
  };
  Geometries results;
  std::vector<UserShape> parts;
  for (const hlo::Type& type : executor::types_by_rule(*call().signature({}))) {
    results.push_back(lazy::intern_contiguous(ops::dtype_of_hlo(type.dtype), type.dims));
    parts.push_back(array_of(results.back()));
  }
  const auto node = call().record(results, {}, /*device=*/0);
  UserValue made{shared_from_this(), {}, {}};
  for (uint32_t i = 0; i < results.size(); ++i) made.values.push_back({node, i});
  made.shape = tuple ? *tuple : parts.size() == 1 ? parts[0] : tuple_of(std::move(parts));
  return made;
}

std::shared_ptr<const UserComputation> UserBuilder::build(std::string name, const UserValue& root) {
  TXLA_CHECK(root.builder.get() == this, "xla_builder: build: expected a value of the builder '",
             name_, "', got one of another builder.");
  std::vector<Value> parameters, captured;
  auto computation = std::make_shared<UserComputation>();
  computation->name = std::move(name);
  computation->result = root.shape;
  int64_t expected = 0;
  const lazy::GraphLock lock;
  for (const auto& [number, parameter] : parameters_) {
    TXLA_CHECK(number == expected++, "xla_builder: build: expected parameters 0 to ",
               parameters_.rbegin()->first, ", got none of number ", expected - 1, ".");
    computation->parameters.push_back(parameter.shape);
    parameters.insert(parameters.end(), parameter.leaves.begin(), parameter.leaves.end());
  }
  const auto belongs = [](const lazy::Node&) { return true; };
  computation->function = std::make_shared<lazy::Function>(
      lazy::function_of(parameters, root.values, belongs, captured));
  return computation;
}

Tensors call_computation(const std::string& name, const Tensors& inputs,
                         const UserComputation& computation) {
  std::vector<const Geometry*> taken;
  for (const UserShape& shape : computation.parameters) append_arrays(shape, taken);
  TXLA_CHECK(inputs.size() == taken.size(), name, ": expected ", taken.size(), " tensors, got ",
             inputs.size(), ".");
  const Geometries given = computation.result.arrays();
  return recorded([&](std::optional<int>& device) {
    const std::vector<Value> values = values_of(name.c_str(), inputs, device);
    for (size_t i = 0; i < inputs.size(); ++i) {
      TXLA_CHECK(inputs[i].scalar_type() == taken[i]->dtype && inputs[i].sizes() == taken[i]->sizes,
                 name, ": expected ", described(*taken[i]), " as tensor ", i, ", got ",
                 inputs[i].sizes(), " of ", inputs[i].scalar_type(), ".");
    }
    if (!device) device = current_device();
    FunctionCall call(kCall);
    call.list(values);
    call.fixed(c10::IValue(name));
    call.expansion(computation.function);
    return result_tensors(call.record(given, {}, *device), given, *device);
  });
}

}  // namespace torch_xla::dispatch
