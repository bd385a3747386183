#include "dispatch/calls/plan.h"

#include <algorithm>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "util/lock_order.h"

namespace torch_xla::dispatch {
namespace {

using c10::Argument;
using c10::FunctionSchema;
using c10::TypeKind;

bool is_written(const Argument& a) {
  return a.alias_info() != nullptr && a.alias_info()->isWrite();
}

bool is_mutable(const FunctionSchema& s) {
  return std::any_of(s.arguments().begin(), s.arguments().end(), is_written);
}

// Overloads of every functional operator by base name.
const std::vector<c10::OperatorHandle>& functional_overloads(const std::string& base) {
  static const auto& table =
      [] {
        auto& map = *new std::unordered_map<std::string, std::vector<c10::OperatorHandle>>;
        c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
        for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
          if (!name.name.starts_with("aten::")) continue;
          const auto op = dispatcher.findSchema(name);
          if (op && !is_mutable(op->schema())) map[name.name].push_back(*op);
        }
        return std::ref(map);
      }()
          .get();
  const auto it = table.find(base);
  static const std::vector<c10::OperatorHandle> kNone;
  return it == table.end() ? kNone : it->second;
}

bool same_arguments(const std::vector<const Argument*>& a, const std::vector<Argument>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i]->name() != b[i].name() || *a[i]->type() != *b[i].type()) return false;
  }
  return true;
}

size_t new_returns(const FunctionSchema& s) {
  return std::count_if(s.returns().begin(), s.returns().end(), [](const Argument& r) {
    return r.alias_info() == nullptr || !r.alias_info()->isWrite();
  });
}

// The functional operator whose arguments are those of `schema` without out=.
const c10::OperatorHandle* find_twin(const FunctionSchema& schema) {
  std::vector<const Argument*> inputs;
  size_t written = 0;
  for (const Argument& a : schema.arguments()) {
    if (is_written(a)) ++written;
    if (!a.is_out()) inputs.push_back(&a);
  }
  std::string base = schema.name();
  if (base.ends_with('_') && !base.ends_with("__")) base.pop_back();
  // __ilshift__ writes what __lshift__ returns.
  if (const size_t i = base.find("::__i"); i != std::string::npos && base.ends_with("__")) {
    base.erase(i + 4, 1);
  }
  for (const std::string& name : {base, base + "_functional"}) {
    for (const c10::OperatorHandle& op : functional_overloads(name)) {
      if (same_arguments(inputs, op.schema().arguments()) &&
          op.schema().returns().size() == new_returns(schema) + written) {
        return &op;
      }
    }
  }
  return nullptr;
}

bool tagged(const c10::OperatorHandle& op, at::Tag tag) {
  const auto tags = op.getTags();
  return std::find(tags.begin(), tags.end(), tag) != tags.end();
}

ArgumentType type_of(const c10::TypePtr& type) {
  switch (type->kind()) {
    case TypeKind::TensorType:
      return ArgumentType::Tensor;
    case TypeKind::NumberType:
      return ArgumentType::Number;
    case TypeKind::GeneratorType:
      return ArgumentType::Generator;
    case TypeKind::OptionalType: {
      const ArgumentType inner = type_of(type->castRaw<c10::OptionalType>()->getElementType());
      return inner == ArgumentType::Tensor ? ArgumentType::OptionalTensor : inner;
    }
    case TypeKind::ListType: {
      const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
      if (element->kind() == TypeKind::TensorType) return ArgumentType::TensorList;
      if (element->kind() == TypeKind::NumberType) return ArgumentType::NumberList;
      if (element->kind() == TypeKind::OptionalType &&
          element->castRaw<c10::OptionalType>()->getElementType()->kind() == TypeKind::TensorType) {
        return ArgumentType::OptionalTensorList;
      }
      return ArgumentType::Static;
    }
    default:
      return ArgumentType::Static;
  }
}

}  // namespace

bool has_tag(const lazy::Operator& op, at::Tag tag) { return tagged(op.handle, tag); }

util::Hash128 hash_of_name(std::string_view full_name) {
  return util::Hasher().add_bytes(full_name).finish();
}

std::shared_ptr<const lazy::Operator> find_operator(const c10::OperatorName& name) {
  static util::Mutex mutex;
  static auto& table = *new std::unordered_map<std::string, std::shared_ptr<const lazy::Operator>>;
  const std::string full = lazy::full_name(name);
  const std::lock_guard lock(mutex);
  auto& slot = table[full];
  if (slot == nullptr) {
    const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow(
        name.name.c_str(), name.overload_name.c_str());
    slot = std::make_shared<const lazy::Operator>(lazy::Operator{
        op, full, ops::Registry::get().find(full), &ops::Registry::get().traits(name),
        tagged(op, at::Tag::nondeterministic_seeded), hash_of_name(full)});
  }
  return slot;
}

namespace {

// Argument `i` of the functional operator.
ArgumentPlan plan_argument(const Argument& argument, size_t i, const ops::Rule* rule) {
  const auto has = [i](const std::vector<size_t>& positions) {
    return std::ranges::find(positions, i) != positions.end();
  };
  ArgumentPlan plan;
  plan.type = type_of(argument.type());
  if (plan.type == ArgumentType::Number && argument.default_value() &&
      !argument.default_value()->isNone()) {
    plan.has_default = true;
    plan.fallback = *argument.default_value();
  }
  if (rule == nullptr) {
    // A decomposition and a host kernel need the numbers themselves.
    plan.static_number = true;
    return plan;
  }
  plan.static_number = has(rule->static_numbers);
  plan.shape_number = has(rule->shape_numbers);
  if (has(rule->dynamic_floats)) plan.type = ArgumentType::FloatNumber;
  return plan;
}

// The results of the operator, and how many of them are new.
int plan_returns(const FunctionSchema& schema, const std::vector<int>& written,
                 OperatorPlan& plan) {
  int new_results = 0;
  for (const Argument& r : schema.returns()) {
    ReturnPlan result;
    if (r.alias_info() != nullptr && r.alias_info()->isWrite()) {
      for (const int argument : written) {
        if (*schema.arguments()[argument].alias_info() == *r.alias_info())
          result.argument = argument;
      }
    } else {
      result.output = new_results++;
    }
    plan.returns.push_back(result);
  }
  return new_results;
}

// When an argument that the schema calls written is. Whatever the schemas of fused optimizers say:
// they write gradients where they unscale them, and steps are counted up before.
int written_only_with(const FunctionSchema& schema, const Argument& argument) {
  const std::optional<int> grad_scale = schema.argumentIndexWithName("grad_scale");
  if (grad_scale && argument.name() == "grads") return *grad_scale;
  if (grad_scale && argument.name() == "state_steps") return OperatorPlan::Write::kNever;
  return OperatorPlan::Write::kAlways;
}

}  // namespace

std::unique_ptr<OperatorPlan> make_plan(const c10::OperatorHandle& op) {
  const FunctionSchema& schema = op.schema();
  auto plan = std::make_unique<OperatorPlan>();
  plan->num_arguments = schema.arguments().size();

  std::vector<int> written;
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    if (is_written(schema.arguments()[i])) written.push_back(static_cast<int>(i));
  }
  if (written.empty()) {
    plan->target = find_operator(op.operator_name());
  } else {
    const c10::OperatorHandle* twin = find_twin(schema);
    if (twin == nullptr) return nullptr;
    plan->target = find_operator(twin->operator_name());
  }
  plan->is_random = plan->target->seeded;
  if (plan->target->traits->dtype_of_out && schema.arguments().back().is_out()) {
    plan->dtype_as_out = *schema.argumentIndexWithName("dtype");
  }

  const FunctionSchema& target = plan->target->schema();
  for (size_t i = 0; i < target.arguments().size(); ++i) {
    plan->arguments.push_back(plan_argument(target.arguments()[i], i, plan->target->rule));
  }
  for (const Argument& r : target.returns()) {
    plan->list_output.push_back(type_of(r.type()) == ArgumentType::TensorList);
  }
  int output = plan_returns(schema, written, *plan);
  for (const int argument : written) {
    const Argument& formal = schema.arguments()[argument];
    plan->writes.push_back(
        {argument, output++, formal.is_out(), written_only_with(schema, formal)});
  }
  return plan;
}

}  // namespace torch_xla::dispatch
