// _foreach_* operators: each element of the lists is lowered by the rule of the operator that the
// list form stands for, so that both always agree.
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "lazy/operator.h"
#include "ops/lowering.h"

namespace torch_xla::ops {
namespace {

using Kind = lazy::Argument::Kind;

// An operator over lists, and the operator that it applies to each element.
struct ListForm {
  lazy::Operator element;
  // For each argument of `element`, the position of the list form's argument; -1: its default.
  std::vector<int> sources;
};

std::map<std::string, ListForm, std::less<>>& list_forms() {
  static std::map<std::string, ListForm, std::less<>> forms;
  return forms;
}

c10::OperatorHandle find_operator(const std::string& name) {
  const size_t dot = name.find('.');
  return c10::Dispatcher::singleton().findSchemaOrThrow(
      name.substr(0, dot).c_str(), dot == std::string::npos ? "" : name.substr(dot + 1).c_str());
}

// Arguments correspond by name where both have it, and by position.
std::vector<int> match(const c10::FunctionSchema& element, const c10::FunctionSchema& list) {
  std::vector<int> sources;
  for (size_t i = 0; i < element.arguments().size(); ++i) {
    const auto named = list.argumentIndexWithName(element.arguments()[i].name());
    const bool positional = i < list.arguments().size() &&
                            !element.argumentIndexWithName(list.arguments()[i].name()).has_value();
    sources.push_back(named ? *named : positional ? static_cast<int>(i) : -1);
  }
  return sources;
}

// The call for one element, in terms of the values that the whole call has.
class ElementCall {
 public:
  ElementCall(const Lowering& l, const ListForm& form, size_t i) : l_(l), form_(form), i_(i) {
    signature_.op = &form.element;
    signature_.default_dtype = l.signature().default_dtype;
    signature_.outputs = {l.signature().outputs.at(i)};
    for (size_t k = 0; k < form.sources.size(); ++k) add_argument(k);
  }

  hlo::Value lower() {
    Lowering element(l_.b, l_.platform(), signature_, operands_, numbers_);
    return form_.element.rule->lower(element).at(0);
  }

 private:
  void add_argument(size_t k) {
    lazy::Argument argument;
    if (form_.sources[k] < 0) {
      argument.value = form_.element.schema().arguments()[k].default_value().value();
    } else {
      const lazy::Argument& whole = l_.signature().arguments.at(form_.sources[k]);
      argument = whole;
      if (whole.kind == Kind::Tensor || whole.kind == Kind::List) {
        const uint32_t source = whole.first + (whole.kind == Kind::List ? i_ : 0);
        argument.kind = Kind::Tensor;
        argument.first = static_cast<uint32_t>(operands_.size());
        signature_.operands.push_back(l_.signature().operands[source]);
        operands_.push_back(l_.operands()[source]);
      } else if (whole.kind == Kind::Number) {
        const uint32_t source = whole.first + (whole.count > 1 ? i_ : 0);
        argument.first = static_cast<uint32_t>(numbers_.size());
        argument.count = 0;
        signature_.numbers.push_back(l_.signature().numbers[source]);
        numbers_.push_back(l_.numbers()[source]);
      } else if (whole.value.isList()) {  // Scalar[] that is part of the program
        argument.value = whole.value.toListRef().at(i_);
      }
    }
    signature_.arguments.push_back(std::move(argument));
  }

  const Lowering& l_;
  const ListForm& form_;
  const uint32_t i_;
  lazy::Signature signature_;
  hlo::Values operands_, numbers_;
};

hlo::Values foreach_element(Lowering& l) {
  const ListForm& form = list_forms().at(l.signature().op->name);
  hlo::Values results;
  for (size_t i = 0; i < l.num_outputs(); ++i) results.push_back(ElementCall(l, form, i).lower());
  return results;
}

void add(Registry& r, const std::string& list_name, const std::string& element_name) {
  const Rule* rule = r.find(element_name);
  if (rule == nullptr) throw std::logic_error(list_name + ": no lowering of " + element_name);
  const c10::OperatorHandle handle = find_operator(element_name);
  ListForm form{{handle, element_name, rule, false},
                match(handle.schema(), find_operator(list_name).schema())};
  Rule& list_rule = r.add(list_name, foreach_element);
  for (const size_t position : rule->static_numbers) {
    if (form.sources[position] >= 0) list_rule.static_numbers.push_back(form.sources[position]);
  }
  list_forms().emplace(list_name, std::move(form));
}

}  // namespace

void register_foreach(Registry& r) {
  // The forms with a tensor or a number for all elements, and with a list of either.
  struct Binary {
    const char *name, *tensor, *number;
  };
  for (const Binary& op : {Binary{"add", "aten::add.Tensor", "aten::add.Scalar"},
                           Binary{"sub", "aten::sub.Tensor", "aten::sub.Scalar"},
                           Binary{"mul", "aten::mul.Tensor", "aten::mul.Scalar"},
                           Binary{"div", "aten::div.Tensor", "aten::div.Scalar"},
                           Binary{"clamp_max", "aten::clamp_max.Tensor", "aten::clamp_max"},
                           Binary{"clamp_min", "aten::clamp_min.Tensor", "aten::clamp_min"},
                           Binary{"maximum", "aten::maximum", "aten::maximum"},
                           Binary{"minimum", "aten::minimum", "aten::minimum"},
                           Binary{"pow", "aten::pow.Tensor_Tensor", "aten::pow.Tensor_Scalar"},
                           Binary{"lerp", "aten::lerp.Tensor", "aten::lerp.Scalar"}}) {
    const std::string name = std::string("aten::_foreach_") + op.name;
    add(r, name + ".List", op.tensor);
    add(r, name + ".Scalar", op.number);
    add(r, name + ".ScalarList", op.number);
  }
  for (const char* name : {"add", "mul", "div"}) {
    add(r, std::string("aten::_foreach_") + name + ".Tensor",
        std::string("aten::") + name + ".Tensor");
  }
  for (const char* name : {"addcmul", "addcdiv"}) {
    add(r, std::string("aten::_foreach_") + name + ".Scalar", std::string("aten::") + name);
    add(r, std::string("aten::_foreach_") + name + ".ScalarList", std::string("aten::") + name);
  }
  add(r, "aten::_foreach_pow.ScalarAndTensor", "aten::pow.Scalar");
  add(r, "aten::_foreach_norm.Scalar", "aten::linalg_vector_norm");
  for (const char* name :
       {"abs",  "acos", "asin",  "atan",       "ceil",  "clone",  "cos",     "cosh",  "erf",
        "erfc", "exp",  "expm1", "floor",      "frac",  "lgamma", "log",     "log10", "log1p",
        "log2", "max",  "neg",   "reciprocal", "round", "rsqrt",  "sigmoid", "sign",  "sin",
        "sinh", "sqrt", "tan",   "tanh",       "trunc", "zero"}) {
    add(r, std::string("aten::_foreach_") + name, std::string("aten::") + name);
  }
}

}  // namespace torch_xla::ops
