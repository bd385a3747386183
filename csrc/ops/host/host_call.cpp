#include <algorithm>
#include <cstdio>
#include <stdexcept>

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "lazy/operator.h"
#include "ops/host/host_kernel.h"

namespace torch_xla::ops {
namespace {

using hlo::Value;
using hlo::Values;
using Kind = lazy::Argument::Kind;

std::string hexadecimal(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%a", value);
  return text;
}

std::string token_of(const c10::IValue& v) {
  if (v.isNone()) return "-";
  if (v.isInt()) return "i" + std::to_string(v.toInt());
  if (v.isDouble()) return "d" + hexadecimal(v.toDouble());
  if (v.isBool()) return v.toBool() ? "b1" : "b0";
  if (v.isComplexDouble()) {
    const c10::complex<double> c = v.toComplexDouble();
    return "c" + hexadecimal(c.real()) + "," + hexadecimal(c.imag());
  }
  if (v.isString()) {
    const std::string& text = v.toStringRef();
    return "q" + std::to_string(text.size()) + ":" + text;
  }
  if (v.isDevice()) return "q3:cpu";
  if (v.isList()) {
    std::string text = "[";
    const auto list = v.toListRef();
    for (size_t i = 0; i < list.size(); ++i) text += (i == 0 ? "" : " ") + token_of(list[i]);
    return text + "]";
  }
  throw std::invalid_argument("host kernel: expected numbers, strings or lists of them, got " +
                              v.tagKind() + ".");
}

// One entry per tensor that the node returns.
std::vector<std::optional<hlo::Type>> result_types(const Lowering& l) {
  std::vector<std::optional<hlo::Type>> types;
  for (size_t i = 0; i < l.num_outputs(); ++i) {
    const bool wanted = l.signature().outputs[i] != nullptr;
    types.push_back(wanted ? std::optional(l.out(i)) : std::nullopt);
  }
  return types;
}

bool has_cpu_kernel(const c10::OperatorHandle& op) {
  for (const c10::DispatchKey key :
       {c10::DispatchKey::CPU, c10::DispatchKey::CompositeExplicitAutograd,
        c10::DispatchKey::CompositeExplicitAutogradNonFunctional,
        c10::DispatchKey::CompositeImplicitAutograd}) {
    if (op.hasKernelForDispatchKey(key)) return true;
  }
  return false;
}

bool has_generator(const c10::FunctionSchema& schema) {
  for (const c10::Argument& a : schema.arguments()) {
    if (a.name() == "generator") return true;
  }
  return false;
}

bool is_random(const c10::OperatorHandle& op) {
  return op.hasTag(at::Tag::nondeterministic_seeded);
}

constexpr std::string_view kCanFail = "torch_xla.failing_call = ";

bool is_arithmetic(std::string_view op) {
  const auto handle = c10::Dispatcher::singleton().findSchema(lazy::operator_name(op));
  return handle && !is_random(*handle) && handle->hasTag(at::Tag::pointwise);
}

}  // namespace

bool has_host_kernel(const c10::OperatorHandle& op, const Target& target) {
  return target.host_kernels && has_cpu_kernel(op) &&
         (!is_random(op) || has_generator(op.schema()));
}

HostCall::HostCall(hlo::Builder& b, std::string_view op, Fails fails)
    : b_(b), can_fail_(fails == Fails::Perhaps && !is_arithmetic(op)), key_(op) {}

bool can_fail(std::string_view program) { return program.find(kCanFail) != program.npos; }

HostCall& HostCall::argument(const std::string& token) {
  key_ += ' ';
  key_ += token;
  return *this;
}

std::string HostCall::operand_token(char tag, const Value& x) {
  // PyTorch's kernels want indices in int64.
  const bool narrowed = x.dtype() == hlo::DType::S32 && device_dtype(at::kLong) == at::kInt;
  operands_.push_back(narrowed ? hlo::convert(x, hlo::DType::S64) : x);
  return tag + std::to_string(operands_.size() - 1);
}

HostCall& HostCall::operand(char tag, const Value& x) { return argument(operand_token(tag, x)); }
HostCall& HostCall::tensor(const Value& x) { return operand('t', x); }
HostCall& HostCall::tensor(const std::optional<Value>& x) { return x ? operand('t', *x) : none(); }
HostCall& HostCall::columns(const Value& x) { return operand('m', x); }
HostCall& HostCall::part(const Value& x, int64_t dim) { return cut('p', x, dim); }
HostCall& HostCall::transposed(const Value& x, int64_t dim) { return cut('x', x, dim); }
HostCall& HostCall::dense_part(const Value& x, int64_t dim) { return cut('k', x, dim); }
HostCall& HostCall::cut(char tag, const Value& x, int64_t dim) {
  return argument(operand_token(tag, x) + "/" + std::to_string(dim));
}
HostCall& HostCall::wrapped_number(const Value& x) { return operand('w', x); }
HostCall& HostCall::number(const Value& x) { return operand('s', x); }
HostCall& HostCall::floating(const Value& x) {
  return operand('f', hlo::convert(x, hlo::DType::F64));
}
HostCall& HostCall::seed(const Value& x) { return operand('g', x); }
HostCall& HostCall::none() { return argument("-"); }
HostCall& HostCall::fixed(const c10::IValue& value) { return argument(token_of(value)); }

HostCall& HostCall::tensors(std::span<const std::optional<Value>> list) {
  std::string text = "(";
  for (size_t i = 0; i < list.size(); ++i) {
    if (i != 0) text += ' ';
    text += list[i] ? operand_token('t', *list[i]) : "-";
  }
  return argument(text + ")");
}

HostCall& HostCall::shared_out(std::span<const Value> list, bool updated) {
  std::string text = "{";
  for (const Value& x : list) {
    if (updated) updates_.emplace_back(updates_.size(), operands_.size());
    text += operand_token(updated ? 'u' : 't', x);
    if (updated) text += ":" + std::to_string(updates_.back().first);
    text += ' ';
  }
  return argument(text + "}");
}

Values HostCall::updates() {
  std::vector<hlo::Type> types;
  for (const auto& [result, operand] : updates_) types.push_back(operands_[operand].type());
  return hlo::custom_call(b_, kHostKernelTarget, operands_, types, config(""),
                          /*has_side_effect=*/false, updates_);
}

std::string HostCall::config(const std::string& wanted) const {
  const std::string key = "key = " + hlo::attr::string(key_ + " =" + wanted);
  if (!can_fail_) return "{" + key + "}";
  return "{" + std::string(kCanFail) + std::to_string(b_.call()) + " : i64, " + key + "}";
}

Values HostCall::results(std::span<const std::optional<hlo::Type>> types,
                         std::span<const int64_t> cuts) {
  std::string wanted;
  std::vector<hlo::Type> given;
  for (size_t i = 0; i < types.size(); ++i) {
    const int64_t cut = i < cuts.size() ? cuts[i] : Partition::kWhole;
    if (!types[i]) {
      wanted += " -";
    } else if (cut == Partition::kWhole) {
      wanted += " *";
    } else {
      wanted += cut == Partition::kSum ? " +" : " /" + std::to_string(cut);
    }
    if (types[i]) given.push_back(*types[i]);
  }
  const Values results = hlo::custom_call(b_, kHostKernelTarget, operands_, given, config(wanted));
  Values all;
  size_t next = 0;
  for (const std::optional<hlo::Type>& type : types)
    all.push_back(type ? results[next++] : Value());
  return all;
}

Value HostCall::result(const hlo::Type& type, int64_t cut) {
  const std::optional<hlo::Type> types[] = {type};
  return results(types, std::span(&cut, 1))[0];
}

namespace {

// Integers of an elementwise operator in the result's dtype, where that is one of floats: the
// kernel would convert them to the default dtype of the time when it runs.
Value as_computed(const Lowering& l, const Value& x) {
  if (!l.signature().op->handle.hasTag(at::Tag::pointwise)) return x;
  const hlo::DType dtype = l.out(0).dtype;
  const bool are_floats = hlo::is_float(x.dtype()) || hlo::is_complex(x.dtype());
  return hlo::is_float(dtype) && !are_floats ? hlo::convert(x, dtype) : x;
}

// The node's argument `i`, as the operator takes it.
void add_argument(HostCall& call, Lowering& l, size_t i) {
  const lazy::Signature& signature = l.signature();
  const lazy::Argument& a = signature.arguments.at(i);
  const c10::Argument& formal = signature.op->schema().arguments()[i];
  if (signature.has_seed && formal.name() == "generator") {
    call.seed(l.seed());
    return;
  }
  switch (a.kind) {
    case Kind::Static:
      if (formal.name() == "pin_memory") {
        call.none();
      } else {
        call.fixed(a.value);
      }
      break;
    case Kind::None:
      call.none();
      break;
    case Kind::Tensor:
      if (signature.operands[a.first].wrapped_number) {
        call.wrapped_number(l.in(i));
      } else {
        call.tensor(as_computed(l, l.in(i)));
      }
      break;
    case Kind::List:
      call.tensors(l.optional_list(i));
      break;
    case Kind::Number: {
      const c10::TypePtr type = formal.type();
      const bool is_float = type->kind() == c10::TypeKind::FloatType ||
                            (type->kind() == c10::TypeKind::OptionalType &&
                             type->castRaw<c10::OptionalType>()->getElementType()->kind() ==
                                 c10::TypeKind::FloatType);
      if (is_float) {
        call.floating(l.in(i));
      } else {
        call.number(l.in(i));
      }
      break;
    }
  }
}

}  // namespace

Values on_host(Lowering& l, const Partition& partition, Fails fails) {
  const lazy::Signature& signature = l.signature();
  const c10::FunctionSchema& schema = signature.op->schema();
  if (signature.has_seed && !has_generator(schema)) {
    throw std::invalid_argument(signature.op->name +
                                ": expected a Generator argument to seed, got none. This random "
                                "operator needs a lowering of its own.");
  }
  HostCall call(l.b, signature.op->name, fails);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto cut = std::find_if(partition.operands.begin(), partition.operands.end(),
                                  [i](const Partition::Cut& c) { return c.position == i; });
    if (cut != partition.operands.end()) {
      call.part(l.in(i), cut->dim);
    } else {
      add_argument(call, l, i);
    }
  }
  return call.results(result_types(l), partition.results);
}

Values on_host_as_laid_out(Lowering& l) {
  if (l.geometry(0).contiguous) return on_host(l);
  HostCall call(l.b, l.signature().op->name);
  call.columns(l.in(0));
  for (size_t i = 1; i < l.signature().arguments.size(); ++i) add_argument(call, l, i);
  return call.results(result_types(l));
}

Values on_host_in_place(Lowering& l, std::string_view op, std::span<const size_t> updated,
                        Fails fails) {
  // XLA's fusion compares all operands of a call with all that it updates, for each operand: one
  // call for the 292 parameters of a GPT-2 of 24 layers took 2.6 s of 12 that the step's program
  // took to compile.
  constexpr size_t kAtOnce = 64;
  const auto& arguments = l.signature().arguments;
  std::vector<Values> lists(arguments.size());
  size_t length = 1;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].kind == Kind::List) lists[i] = l.list(i);
    length = std::max(length, lists[i].size());
  }
  std::vector<Values> updates(arguments.size());
  for (size_t first = 0; first < length; first += kAtOnce) {
    const auto part = [&](size_t i) {
      const size_t begin = std::min(first, lists[i].size());
      return std::span<const Value>(lists[i]).subspan(begin,
                                                      std::min(kAtOnce, lists[i].size() - begin));
    };
    HostCall call(l.b, op, fails);
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].kind == Kind::List) {
        call.shared_out(part(i), std::find(updated.begin(), updated.end(), i) != updated.end());
      } else {
        add_argument(call, l, i);
      }
    }
    const Values given = call.updates();
    auto next = given.begin();
    for (const size_t i : updated) {
      const auto end = next + std::ssize(part(i));
      updates[i].insert(updates[i].end(), next, end);
      next = end;
    }
  }
  Values all;
  for (const Values& list : updates) all.insert(all.end(), list.begin(), list.end());
  return all;
}

}  // namespace torch_xla::ops
