#include "ops/on_host.h"

#include <algorithm>
#include <stdexcept>

#include <ATen/core/dispatch/Dispatcher.h>

#include "lazy/operator.h"

namespace torch_xla::ops {
namespace {

using hlo::Value;
using hlo::Values;
using Kind = lazy::Argument::Kind;

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
  if (signature.num_seeds != 0 && formal.name() == "generator") {
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

bool has_host_kernel(const c10::OperatorHandle& op, const Target& target) {
  return target.host_kernels && has_cpu_kernel(op) &&
         (!is_random(op) || has_generator(op.schema()));
}

Values on_host(Lowering& l, const cpu::Partition& partition, Fails fails) {
  const lazy::Signature& signature = l.signature();
  const c10::FunctionSchema& schema = signature.op->schema();
  if (signature.num_seeds != 0 && !has_generator(schema)) {
    throw std::invalid_argument(signature.op->name +
                                ": expected a Generator argument to seed, got none. This random "
                                "operator needs a lowering of its own.");
  }
  HostCall call(l.b, signature.op->name, fails);
  for (size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto cut = std::find_if(partition.operands.begin(), partition.operands.end(),
                                  [i](const cpu::Partition::Cut& c) { return c.position == i; });
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
