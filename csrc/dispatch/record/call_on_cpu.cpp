#include "dispatch/record/call_on_cpu.h"

#include <unordered_map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "dispatch/calls/substitute.h"
#include "lazy/function.h"
#include "lazy/operator.h"
#include "ops/registry.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Argument;
using lazy::Node;
using lazy::Signature;

at::Scalar scalar_of(const lazy::Number& number, lazy::NumberKind kind) {
  switch (kind) {
    case lazy::NumberKind::Float:
      return number.real;
    case lazy::NumberKind::Int:
      return number.integer;
    case lazy::NumberKind::Bool:
      return number.integer != 0;
    case lazy::NumberKind::Complex:
      return c10::complex<double>(number.real, number.imag);
    case lazy::NumberKind::UInt:
      return static_cast<uint64_t>(number.integer);
  }
  return {};
}

// In the type that the schema asks for.
c10::IValue number_of(const at::Scalar& scalar, const c10::Type& type) {
  if (type.kind() == c10::TypeKind::OptionalType) {
    return number_of(scalar, *type.expectRef<c10::OptionalType>().getElementType());
  }
  if (type.kind() == c10::TypeKind::FloatType) return scalar.toDouble();
  return scalar;
}

// An operand with the strides that the call saw, which kernels go by.
at::Tensor laid_out(const at::Tensor& t, const lazy::OperandInfo& info) {
  at::Tensor there = t;
  const lazy::Geometry& g = *info.geometry;
  if (!g.contiguous && t.defined() && g.storage_elements() == g.numel) {
    there = at::empty_strided(g.sizes, g.strides, t.options()).copy_(t);
  }
  if (info.wrapped_number && t.is_cpu()) {
    there = there.clone();
    there.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return there;
}

[[noreturn]] void refuse(const Signature& s, const char* why) {
  util::fail(util::ErrorKind::NotImplemented, s.op->name, ": ", why, ".");
}

Tensors flattened(const torch::jit::Stack& results) {
  Tensors all;
  for (const c10::IValue& v : results) {
    if (v.isTensor()) {
      all.push_back(v.toTensor());
    } else if (v.isTensorList()) {
      for (const at::Tensor& t : v.toTensorVector()) all.push_back(t);
    } else {
      all.emplace_back();
    }
  }
  return all;
}

// A function's calls, of these parameters.
Tensors function_on_cpu(const lazy::KeptFunction& function, const Tensors& parameters) {
  std::unordered_map<const Node*, Tensors> values;
  for (size_t i = 0; i < function.parameters.size(); ++i) {
    values[function.parameters[i]] = {parameters.at(i)};
  }
  const auto value = [&](const lazy::Value& v) {
    return v ? values.at(v.node.get()).at(v.index) : at::Tensor();
  };
  for (const Node* call : function.calls) {
    Tensors operands;
    for (const lazy::Value& operand : call->operands()) operands.push_back(value(operand));
    values[call] = call_on_cpu(*call, operands);
  }
  Tensors results;
  for (const lazy::Value& result : function.results) results.push_back(value(result));
  return results;
}

bool has_cpu_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace

torch::jit::Stack arguments_of(const Node& call, const Tensors& operands, c10::Device device) {
  const Signature& s = call.signature();
  const auto& schema = s.op->schema().arguments();
  // A node has its operands in order, without those that are numbers; none where the values do not
  // matter.
  size_t next_operand = 0;
  const bool is_constant = ops::is_constant(*s.op);
  const auto operand = [&](size_t i) {
    const int32_t number = s.operands[i].number;
    const lazy::Geometry& g = *s.operands[i].geometry;
    if (number < 0 && is_constant) {
      return at::zeros(g.sizes, at::TensorOptions(g.dtype).device(device));
    }
    if (number < 0) return laid_out(operands.at(next_operand++), s.operands[i]);
    const at::Scalar scalar = scalar_of(call.numbers()[static_cast<size_t>(number)],
                                        s.numbers[static_cast<size_t>(number)]);
    return laid_out(at::scalar_tensor(scalar, at::TensorOptions(g.dtype).device(device)),
                    s.operands[i]);
  };
  torch::jit::Stack stack;
  for (size_t i = 0; i < s.arguments.size(); ++i) {
    const Argument& a = s.arguments[i];
    switch (a.kind) {
      case Argument::Kind::Static:
        stack.push_back(substitute(a.value, device, [](const at::Tensor& t) { return t; }));
        break;
      case Argument::Kind::None:  // None, or not given
        stack.push_back(schema[i].type()->kind() != c10::TypeKind::OptionalType
                            ? schema[i].default_value().value_or(c10::IValue())
                            : c10::IValue());
        break;
      case Argument::Kind::Tensor:
        stack.emplace_back(operand(a.first));
        break;
      case Argument::Kind::Number: {
        if (schema[i].type()->kind() == c10::TypeKind::ListType) {
          c10::List<at::Scalar> numbers;
          for (uint32_t k = 0; k < a.count; ++k) {
            numbers.push_back(scalar_of(call.numbers()[a.first + k], s.numbers[a.first + k]));
          }
          stack.emplace_back(std::move(numbers));
        } else {
          stack.push_back(
              number_of(scalar_of(call.numbers()[a.first], s.numbers[a.first]), *schema[i].type()));
        }
        break;
      }
      case Argument::Kind::List: {
        uint32_t next = a.first;
        if (a.present.empty()) {
          c10::List<at::Tensor> list;
          for (uint32_t k = 0; k < a.count; ++k) list.push_back(operand(next++));
          stack.emplace_back(std::move(list));
        } else {
          c10::List<std::optional<at::Tensor>> list;
          for (const bool present : a.present) {
            list.push_back(present ? std::optional(operand(next++)) : std::nullopt);
          }
          stack.emplace_back(std::move(list));
        }
        break;
      }
    }
  }
  return stack;
}

Tensors call_on_cpu(const Node& call, const Tensors& operands) {
  const Signature& s = call.signature();
  if (s.num_seeds > 0) refuse(s, "random numbers of the CPU are others");
  if (!s.regions.empty()) refuse(s, "runs functions of its own");
  const at::NoGradGuard no_grad;
  if (s.expansion != nullptr) return function_on_cpu(*s.expansion, operands);
  const c10::KernelFunction& reference = s.op->traits->reference;
  if (!reference.isValid() && !has_cpu_kernel(s.op->handle)) {
    refuse(s, "PyTorch has no kernel of it for the CPU");
  }
  torch::jit::Stack stack = arguments_of(call, operands, at::kCPU);
  if (reference.isValid()) {
    reference.callBoxed(s.op->handle, c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  } else {
    s.op->handle.callBoxed(&stack);
  }
  return flattened(stack);
}

}  // namespace torch_xla::dispatch
