#include "ops/host_call.h"

#include <algorithm>
#include <stdexcept>

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include "cpu/host_kernel.h"
#include "hlo/ops.h"
#include "lazy/operator.h"
#include "ops/dtypes.h"

namespace torch_xla::ops {
namespace {

using hlo::Value;
using hlo::Values;
using Kind = cpu::CallText::Kind;

cpu::CallText::Constant constant_of(const c10::IValue& v) {
  if (v.isNone()) return {};
  if (v.isInt()) return {v.toInt()};
  if (v.isDouble()) return {v.toDouble()};
  if (v.isBool()) return {v.toBool()};
  if (v.isComplexDouble()) return {static_cast<std::complex<double>>(v.toComplexDouble())};
  if (v.isString()) return {v.toStringRef()};
  if (v.isDevice()) return {std::string("cpu")};
  if (v.isList()) {
    std::vector<cpu::CallText::Constant> list;
    for (const c10::IValue& element : v.toListRef()) list.push_back(constant_of(element));
    return {std::move(list)};
  }
  throw std::invalid_argument("host kernel: expected numbers, strings or lists of them, got " +
                              v.tagKind() + ".");
}

bool is_arithmetic(std::string_view op) {
  const auto handle = c10::Dispatcher::singleton().findSchema(lazy::operator_name(op));
  return handle && !handle->hasTag(at::Tag::nondeterministic_seeded) &&
         handle->hasTag(at::Tag::pointwise);
}

}  // namespace

HostCall::HostCall(hlo::Builder& b, std::string_view op, Fails fails)
    : b_(b), can_fail_(fails == Fails::Perhaps && !is_arithmetic(op)), text_{std::string(op)} {}

HostCall& HostCall::argument(cpu::CallText::ArgumentText argument) {
  text_.arguments.push_back(std::move(argument));
  return *this;
}

int64_t HostCall::add_operand(const Value& x) {
  // PyTorch's kernels want indices in int64.
  const bool narrowed = x.dtype() == hlo::DType::S32 && device_dtype(at::kLong) == at::kInt;
  operands_.push_back(narrowed ? hlo::convert(x, hlo::DType::S64) : x);
  return std::ssize(operands_) - 1;
}

int64_t HostCall::known_operand(const Value& x) {
  const auto known = std::ranges::find(operands_, x.id(), &Value::id);
  return known == operands_.end() ? add_operand(x) : known - operands_.begin();
}

HostCall& HostCall::operand(Kind kind, const Value& x, int64_t dim) {
  return argument({.kind = kind, .operand = static_cast<size_t>(add_operand(x)), .dim = dim});
}

HostCall& HostCall::tensor(const Value& x) { return operand(Kind::Tensor, x); }
HostCall& HostCall::tensor(const std::optional<Value>& x) { return x ? tensor(*x) : none(); }
HostCall& HostCall::columns(const Value& x) { return operand(Kind::Columns, x); }
HostCall& HostCall::part(const Value& x, int64_t dim) { return operand(Kind::Part, x, dim); }
HostCall& HostCall::transposed(const Value& x, int64_t dim) {
  return operand(Kind::TransposedPart, x, dim);
}
HostCall& HostCall::wrapped_number(const Value& x) { return operand(Kind::WrappedNumber, x); }
HostCall& HostCall::number(const Value& x) { return operand(Kind::Scalar, x); }
HostCall& HostCall::floating(const Value& x) {
  return operand(Kind::Float, hlo::convert(x, hlo::DType::F64));
}
HostCall& HostCall::seed(const Value& x) { return operand(Kind::Seed, x); }
HostCall& HostCall::none() { return argument({}); }
HostCall& HostCall::fixed(const c10::IValue& value) {
  return argument({.constant = constant_of(value)});
}

HostCall& HostCall::tensors(std::span<const std::optional<Value>> list) {
  cpu::CallText::ArgumentText argument{.kind = Kind::List};
  for (const std::optional<Value>& x : list) {
    argument.list.push_back({.operand = x ? add_operand(*x) : -1});
  }
  return this->argument(std::move(argument));
}

HostCall& HostCall::parts(std::span<const Value> list, int64_t dim) {
  cpu::CallText::ArgumentText argument{.kind = Kind::List};
  for (const Value& x : list) argument.list.push_back({.operand = add_operand(x), .dim = dim});
  return this->argument(std::move(argument));
}

HostCall& HostCall::shared_out(std::span<const Value> list, bool updated) {
  cpu::CallText::ArgumentText argument{.kind = Kind::SharedOut};
  for (const Value& x : list) {
    // A layer's gradient among those of all layers, say: the kernel finds it there.
    const hlo::Builder::Row* row = updated ? nullptr : b_.row_of(x);
    if (row != nullptr && row->whole.rank() == x.rank() + 1) {
      argument.list.push_back({.operand = known_operand(row->whole), .row = row->index});
      continue;
    }
    const int64_t operand = add_operand(x), result = updated ? std::ssize(updates_) : -1;
    if (updated) updates_.emplace_back(result, operand);
    argument.list.push_back({.operand = operand, .result = result});
  }
  return this->argument(std::move(argument));
}

Values HostCall::updates() {
  std::vector<hlo::Type> types;
  for (const auto& [result, operand] : updates_) types.push_back(operands_[operand].type());
  // A row of what may lie in memory that the call updates is copied before.
  for (cpu::CallText::ArgumentText& a : text_.arguments) {
    for (cpu::CallText::ArgumentText::Element& e : a.list) {
      if (e.row < 0) continue;
      const Value whole = operands_[e.operand];
      const auto is_as_large = [&](const hlo::Type& t) {
        return t.elements() == whole.type().elements();
      };
      if (std::ranges::none_of(types, is_as_large)) continue;
      const hlo::Dims dims(whole.dims().begin() + 1, whole.dims().end());
      e.operand = add_operand(hlo::reshape(hlo::slice_dim(whole, 0, e.row, e.row + 1, 1), dims));
      e.row = -1;
    }
  }
  return hlo::custom_call(b_, cpu::kHostKernelTarget, operands_, types, config(),
                          /*has_side_effect=*/false, updates_);
}

std::string HostCall::config() const {
  const std::string text =
      std::string(cpu::kCallTextAttribute) + " = " + hlo::attr::string(text_.str());
  if (!can_fail_) return "{" + text + "}";
  return "{" + std::string(cpu::kFailingCallAttribute) + " = " + hlo::attr::i64(b_.call()) + ", " +
         text + "}";
}

Values HostCall::results(std::span<const std::optional<hlo::Type>> types,
                         std::span<const int64_t> cuts) {
  return transposed_results(0, types, cuts);
}

Values HostCall::transposed_results(size_t transposed,
                                    std::span<const std::optional<hlo::Type>> types,
                                    std::span<const int64_t> cuts) {
  std::vector<hlo::Type> given;
  for (size_t i = 0; i < types.size(); ++i) {
    const bool wanted = types[i].has_value();
    text_.results.push_back({wanted, wanted && i < cuts.size() ? cuts[i] : cpu::Partition::kWhole,
                             wanted && i < transposed});
    if (wanted) given.push_back(*types[i]);
  }
  const Values results = hlo::custom_call(b_, cpu::kHostKernelTarget, operands_, given, config());
  Values all;
  size_t next = 0;
  for (const cpu::CallText::Result& result : text_.results) {
    all.push_back(result.wanted ? results[next++] : Value());
    if (result.transposed) all.back() = hlo::swap_middle(all.back());
  }
  return all;
}

Value HostCall::result(const hlo::Type& type, int64_t cut) {
  const std::optional<hlo::Type> types[] = {type};
  return results(types, std::span(&cut, 1))[0];
}

}  // namespace torch_xla::ops
