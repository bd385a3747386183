// _foreach_* operators: each element of the lists is lowered by the rule of the operator that the
// list form stands for, so that both always agree.
#include <map>
#include <string>
#include <vector>

#include <ATen/Dispatch_v2.h>
#include <ATen/OpMathType.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "lazy/operator.h"
#include "ops/elementwise.h"
#include "ops/lowering.h"
#include "util/error.h"

namespace torch_xla::ops {
namespace {

using Kind = lazy::Argument::Kind;

// The operator that a list form applies to each element.
struct Element {
  std::string name;
};

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
  const c10::OperatorName op = lazy::operator_name(name);
  return c10::Dispatcher::singleton().findSchemaOrThrow(op.name.c_str(), op.overload_name.c_str());
}

bool has_operator(const std::string& name) {
  return c10::Dispatcher::singleton().findSchema(lazy::operator_name(name)).has_value();
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
    Lowering element(l_, signature_, operands_, numbers_);
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

void add(Registry& r, const std::string& list_name, const Element& element) {
  const Rule* rule = r.find(element.name);
  TXLA_CHECK(rule != nullptr, list_name, ": expected a lowering of ", element.name,
             ", found none.");
  const c10::OperatorHandle handle = find_operator(element.name);
  ListForm form{{.handle = handle,
                 .name = element.name,
                 .rule = rule,
                 .traits = &r.traits(handle.operator_name()),
                 .seeded = false},
                match(handle.schema(), find_operator(list_name).schema())};
  Rule& list_rule = r.add(list_name, foreach_element);
  for (const size_t position : rule->static_numbers) {
    if (form.sources[position] >= 0) list_rule.static_numbers.push_back(form.sources[position]);
  }
  list_forms().emplace(list_name, std::move(form));
}

// (self, scalar), (self, scalars) and (self, other); PyTorch's Meta kernels of lists refuse no
// truth values.
void check_subtraction(const Arguments& a) {
  const c10::IValue& given = a[1];
  const c10::ArrayRef<c10::IValue> self = a[0].toListRef();
  // A list of another length is refused for that.
  if (given.isList() && given.toListRef().size() != self.size()) return;
  for (size_t i = 0; i < self.size(); ++i) {
    refuse_bool_subtraction(is_bool(self[i]),
                            is_bool(given.isList() ? given.toListRef()[i] : given));
  }
}

// (self, tensor1, tensor2, value or values)
void check_factors(const Arguments& a) {
  const c10::IValue& given = a[3];
  const c10::ArrayRef<c10::IValue> self = a[0].toListRef();
  if (given.isTensor() || (given.isList() && given.toListRef().size() != self.size())) return;
  for (size_t i = 0; i < self.size(); ++i) {
    const c10::IValue& factor = given.isList() ? given.toListRef()[i] : given;
    const at::ScalarType dtype = self[i].toTensor().scalar_type();
    if (!factor.isComplexDouble() || c10::isComplexType(dtype)) continue;
    AT_DISPATCH_V2(dtype, "value",
                   AT_WRAP([&] { (void)factor.toScalar().to<at::opmath_type<scalar_t>>(); }),
                   AT_EXPAND(AT_ALL_TYPES), at::kBool, at::kHalf, at::kBFloat16);
  }
}

}  // namespace

const Rules optim_foreach_rules(
    [](Registry& r) {
      // The forms with a tensor or a number for all elements, and with a list of either.
      struct Binary {
        const char* name;
        Element tensor, number;
      };
      for (const Binary& op :
           {Binary{"add", Element{"aten::add.Tensor"}, Element{"aten::add.Scalar"}},
            Binary{"sub", Element{"aten::sub.Tensor"}, Element{"aten::sub.Scalar"}},
            Binary{"mul", Element{"aten::mul.Tensor"}, Element{"aten::mul.Scalar"}},
            Binary{"div", Element{"aten::div.Tensor"}, Element{"aten::div.Scalar"}},
            Binary{"clamp_max", Element{"aten::clamp_max.Tensor"}, Element{"aten::clamp_max"}},
            Binary{"clamp_min", Element{"aten::clamp_min.Tensor"}, Element{"aten::clamp_min"}},
            Binary{"maximum", Element{"aten::maximum"}, Element{"aten::maximum"}},
            Binary{"minimum", Element{"aten::minimum"}, Element{"aten::minimum"}},
            Binary{"pow", Element{"aten::pow.Tensor_Tensor"}, Element{"aten::pow.Tensor_Scalar"}},
            Binary{"lerp", Element{"aten::lerp.Tensor"}, Element{"aten::lerp.Scalar"}}}) {
        const std::string name = std::string("aten::_foreach_") + op.name;
        add(r, name + ".List", op.tensor);
        add(r, name + ".Scalar", op.number);
        add(r, name + ".ScalarList", op.number);
      }
      for (const std::string name : {"add", "mul", "div"}) {
        add(r, "aten::_foreach_" + name + ".Tensor", Element{"aten::" + name + ".Tensor"});
      }
      for (const std::string name : {"addcmul", "addcdiv"}) {
        add(r, "aten::_foreach_" + name + ".Scalar", Element{"aten::" + name});
        add(r, "aten::_foreach_" + name + ".ScalarList", Element{"aten::" + name});
        r.all("aten::_foreach_" + name).checks_numbers = check_factors;
      }
      r.all("aten::_foreach_sub").checks_numbers = check_subtraction;
      add(r, "aten::_foreach_pow.ScalarAndTensor", Element{"aten::pow.Scalar"});
      add(r, "aten::_foreach_norm.Scalar", Element{"aten::linalg_vector_norm"});
      for (const std::string name :
           {"abs",   "acos", "asin",  "atan",  "ceil",       "cos",    "cosh",  "erf",
            "erfc",  "exp",  "expm1", "floor", "frac",       "lgamma", "log",   "log10",
            "log1p", "log2", "max",   "neg",   "reciprocal", "round",  "rsqrt", "sigmoid",
            "sign",  "sin",  "sinh",  "sqrt",  "tan",        "tanh",   "trunc", "zero"}) {
        add(r, "aten::_foreach_" + name, Element{"aten::" + name});
      }
      if (const std::string clone = "aten::_foreach_clone"; has_operator(clone)) {  // since 2.13
        add(r, clone, Element{"aten::clone"});
      }
    },
    Rules::Stage::Later);

}  // namespace torch_xla::ops
