#include "dispatch/judge/call_on_cpu.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include "dispatch/calls/arguments.h"
#include "lazy/function.h"
#include "lazy/operator.h"
#include "ops/registry.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

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

// A function's results, of these parameters.
Tensors function_on_cpu(const lazy::Function& function, Tensors parameters) {
  std::vector<Tensors> values;  // by Ref::index
  for (at::Tensor& parameter : parameters) values.push_back({std::move(parameter)});
  const auto value = [&](const lazy::Ref& r) {
    return r ? values.at(r.index).at(r.result) : at::Tensor();
  };
  for (size_t c = 0; c < function.calls.size(); ++c) {
    Tensors operands;
    for (const lazy::Ref& r : function.operands_of(function.calls[c])) operands.push_back(value(r));
    values.push_back(call_on_cpu(function, c, operands));
  }
  Tensors results;
  for (const lazy::Ref& result : function.results) results.push_back(value(result));
  return results;
}

bool has_cpu_kernel(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CPU) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) ||
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

}  // namespace

torch::jit::Stack arguments_of(const Signature& s, std::span<const lazy::Number> numbers,
                               const Tensors& operands, c10::Device device) {
  // A call has its operands in order, without those that are numbers; none where the values do not
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
    const auto place = static_cast<size_t>(number);
    const at::Scalar scalar = scalar_of(numbers[place], s.numbers[place]);
    return laid_out(at::scalar_tensor(scalar, at::TensorOptions(g.dtype).device(device)),
                    s.operands[i]);
  };
  const auto number = [&](size_t i) { return scalar_of(numbers[i], s.numbers[i]); };
  torch::jit::Stack stack = arguments_of(s, operand, number);
  for (c10::IValue& v : stack) {
    if (v.isDevice()) v = device;
  }
  return stack;
}

Tensors call_on_cpu(const lazy::Function& function, size_t call, const Tensors& operands) {
  const Signature& s = *function.calls.at(call).signature;
  if (s.num_seeds > 0) refuse(s, "random numbers of the CPU are others");
  if (!s.regions.empty()) refuse(s, "runs functions of its own");
  const at::NoGradGuard no_grad;
  if (s.expansion != nullptr) return function_on_cpu(*s.expansion, operands);
  const c10::KernelFunction& reference = s.op->traits->reference;
  if (!reference.isValid() && !has_cpu_kernel(s.op->handle)) {
    refuse(s, "PyTorch has no kernel of it for the CPU");
  }
  torch::jit::Stack stack =
      arguments_of(s, function.numbers_of(function.calls[call]), operands, at::kCPU);
  if (reference.isValid()) {
    reference.callBoxed(s.op->handle, c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  } else {
    s.op->handle.callBoxed(&stack);
  }
  return flattened(stack);
}

}  // namespace torch_xla::dispatch
