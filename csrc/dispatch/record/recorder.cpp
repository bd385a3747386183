#include "dispatch/record/recorder.h"

#include <algorithm>

#include <ATen/ops/empty_like.h>
#include <c10/core/DefaultDtype.h>

#include "dispatch/calls/arguments.h"
#include "dispatch/calls/call.h"
#include "dispatch/calls/substitute.h"
#include "dispatch/judge/known_values.h"
#include "dispatch/record/context.h"
#include "dispatch/record/fallback.h"
#include "dispatch/sharding/mark_sharding.h"
#include "dispatch/views/resize.h"
#include "lazy/rng.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::Number;
using lazy::NumberKind;
using lazy::Value;
using torch::jit::Stack;

Number number_of_scalar(const c10::IValue& v, NumberKind* kind) {
  Number n;
  if (v.isDouble()) {
    *kind = NumberKind::Float;
    n.real = v.toDouble();
  } else if (v.isInt()) {
    *kind = NumberKind::Int;
    n.integer = v.toInt();
  } else if (v.isUnsigned()) {
    *kind = NumberKind::UInt;
    n.integer = static_cast<int64_t>(v.toUInt());
  } else if (v.isBool()) {
    *kind = NumberKind::Bool;
    n.integer = v.toBool();
  } else if (v.isComplexDouble()) {
    *kind = NumberKind::Complex;
    n.real = v.toComplexDouble().real();
    n.imag = v.toComplexDouble().imag();
  } else {
    util::fail(util::ErrorKind::Type, "expected a number, got ", v.tagKind(),
               ". Symbolic numbers cannot be recorded.");
  }
  return n;
}

// An argument of the same call on tensors without memory. PyTorch's Meta kernels in C++ take
// numbers of the CPU where TensorIterator does, those in Python wherever a 0-dim tensor can be; but
// for elements of lists, this takes them so, too.
c10::IValue without_memory(const c10::IValue& v) {
  const bool is_element = !v.isTensor();
  return substitute(v, at::kMeta, [is_element](const at::Tensor& t) {
    if (!t.defined()) return t;
    if (lazy::TensorImpl* impl = lazy::as_lazy(t)) return meta_tensor(*impl->geometry(), false);
    if (is_element || !t.is_cpu() || t.dim() != 0) return t;
    return meta_tensor(*lazy::intern(t.scalar_type(), {}, {}),
                       t.unsafeGetTensorImpl()->is_wrapped_number());
  });
}

// Returns null for an undefined result.
const Geometry* meta_geometry(const c10::IValue& v) {
  if (v.isNone() || !v.toTensor().defined()) return nullptr;
  const at::Tensor& t = v.toTensor();
  return lazy::intern(t.scalar_type(), t.sizes(), t.strides());
}

}  // namespace

Number number_of(const at::Tensor& tensor, NumberKind* kind) {
  Number n;
  const void* data = tensor.const_data_ptr();
  const at::ScalarType dtype = tensor.scalar_type();
  switch (dtype) {
    case at::kDouble:
      *kind = NumberKind::Float;
      n.real = *static_cast<const double*>(data);
      break;
    case at::kFloat:
      *kind = NumberKind::Float;
      n.real = *static_cast<const float*>(data);
      break;
    case at::kLong:
      *kind = NumberKind::Int;
      n.integer = *static_cast<const int64_t*>(data);
      break;
    case at::kInt:
      *kind = NumberKind::Int;
      n.integer = *static_cast<const int32_t*>(data);
      break;
    case at::kBool:
      *kind = NumberKind::Bool;
      n.integer = *static_cast<const bool*>(data);
      break;
    default: {
      const c10::Scalar s = tensor.item();
      n = number_of_scalar(c10::IValue(s), kind);
    }
  }
  return n;
}

namespace {

const debug::OftenTimed recording_time("LazyTracing");

}  // namespace

// The findings of one walk over the arguments. Touches no heap for ordinary calls.
struct Recorder::Scan {
  explicit Scan(const lazy::Operator& op) : key(op.hash) {}

  lazy::CallKey key;
  // Values of runtime numbers that decide the result's shape: they tell calls apart here, but are
  // no part of the program.
  std::optional<lazy::CallKey> shape;
  lazy::Operands operands;
  lazy::Numbers numbers;
  int device = -1;
  bool stranger = false;               // a tensor on key XLA that is not ours
  const at::Tensor* on_cpu = nullptr;  // a CPU tensor with dimensions
  int on_cpu_argument = -1;

  util::Hash128 memo_key() const {
    if (!shape) return key.finish();
    return util::Hasher().add(key.finish()).add(shape->finish()).finish();
  }

  // For visit_arguments.
  void none() { key.none(); }
  void tensor(const at::Tensor& t, int argument) {
    if (lazy::TensorImpl* impl = lazy::as_lazy(t)) {
      const int index = impl->device_index();
      if (device < 0) {
        device = index;
      } else if (device != index) {
        util::fail(util::ErrorKind::Runtime,
                   "Expected all tensors to be on the same device, but found at least two devices, "
                   "xla:",
                   device, " and xla:", index, "!");
      }
      key.tensor(impl->geometry());
      operands.push_back(impl->read());
    } else if (t.is_cpu() && t.dim() == 0) {
      NumberKind kind;
      numbers.push_back(number_of(t, &kind));
      key.zero_dim(t.scalar_type(), t.unsafeGetTensorImpl()->is_wrapped_number());
    } else if (t.is_cpu()) {
      on_cpu = &t;
      on_cpu_argument = argument;
    } else {
      stranger = true;
    }
  }
  void begin_list(size_t size) { key.begin_list(size); }
  void begin_numbers(size_t size) { key.begin_list(size); }
  void number(const c10::IValue& v, const ArgumentPlan& plan) {
    NumberKind kind;
    numbers.push_back(number_of_scalar(v, &kind));
    key.number(kind);
    if (!plan.shape_number) return;
    if (!shape) shape.emplace(util::Hash128());
    shape->fixed(v);
  }
  void fixed(const c10::IValue& v) {
    if (v.isDevice() && device < 0) device = current_device_or(v.toDevice());
    key.fixed(v);
  }
};

namespace {

// The same walk, for the signature.
struct ToSignature {
  lazy::SignatureBuilder& builder;

  void none() { builder.none(); }
  void tensor(const at::Tensor& t, int) {
    if (lazy::TensorImpl* impl = lazy::as_lazy(t)) {
      builder.tensor(impl->geometry());
      return;
    }
    NumberKind kind;
    number_of(t, &kind);
    builder.zero_dim(t.scalar_type(), t.unsafeGetTensorImpl()->is_wrapped_number(), kind);
  }
  void begin_list(size_t size) { builder.begin_list(size); }
  void begin_numbers(size_t size) { builder.begin_numbers(size); }
  void number(const c10::IValue& v, const ArgumentPlan&) {
    NumberKind kind;
    number_of_scalar(v, &kind);
    builder.number(kind);
  }
  void fixed(const c10::IValue& v) { builder.fixed(v); }
};

}  // namespace

Recorder::Recorder(const c10::OperatorHandle& op, std::unique_ptr<OperatorPlan> plan)
    : op_(op),
      plan_(std::move(plan)),
      meta_(plan_->target->handle),
      cpu_kernel_(*plan_),
      traits_(*plan_->target->traits),
      is_constant_(ops::is_constant(*plan_->target)),
      is_made_like_(traits_.made_like || op.operator_name().name.ends_with("_like")),
      device_argument_(is_made_like_ ? op.schema().argumentIndexWithName("device") : std::nullopt),
      written_memory_(*plan_, cpu_kernel_.is_elementwise()),
      converted_numbers_(*plan_),
      counter_("xla::" + op.schema().name().substr(op.schema().name().find("::") + 2)) {
  if (plan_->writes.empty()) return;
  counts_list_writes_ = !op.hasKernelForDispatchKey(c10::DispatchKey::ADInplaceOrView);
  std::optional<MetaKernel>& meta = plan_->writes[0].is_out ? out_meta_ : in_place_meta_;
  meta.emplace(op);
  if (!plan_->writes[0].is_out) return;
  if (!meta->speaks_for_cpu()) meta.reset();
}

// The slow part of a call that was not seen before.
Recorder::KnownCall Recorder::make_known(const Stack& stack, size_t base, int device) const {
  KnownCall entry;
  entry.route = route_of(*plan_->target);
  if (entry.route == Route::Host) return entry;
  const std::optional<Stack> results = results_without_memory(stack, base);
  if (!results) {
    entry.route = Route::Host;
    return entry;
  }
  lazy::SignatureBuilder builder(*plan_->target);
  ToSignature visitor{builder};
  visit_arguments(*plan_, stack, base, visitor);
  if (plan_->is_random) builder.seed();
  for (size_t k = 0; k < results->size(); ++k) {
    const uint32_t first = builder.num_outputs();
    if (plan_->list_output[k]) {
      for (const c10::IValue& e : (*results)[k].toListRef()) builder.output(meta_geometry(e));
    } else {
      builder.output(meta_geometry((*results)[k]));
    }
    entry.outputs.emplace_back(first, builder.num_outputs() - first);
  }
  c10::intrusive_ptr<lazy::Signature> signature = builder.build();
  entry.signature = lazy::known_signature(signature->key);
  if (!entry.signature.defined()) {
    if (plan_->target->rule == nullptr) {
      // PyTorch decomposes the call now, so that nothing can fail when it is lowered.
      entry.route = expand_signature(*signature, device);
    }
    if (entry.route == Route::Record) entry.signature = lazy::intern(std::move(signature));
  }
  if (entry.route == Route::Record) cpu_kernel_.check_lowering(*entry.signature, stack, base);
  return entry;
}

// Returns the results of PyTorch's Meta kernels; none where only the values tell. A call that they
// refuse is shown to the CPU kernel, whose words users know.
std::optional<Stack> Recorder::results_without_memory(const Stack& stack, size_t base) const {
  Stack results;
  try {
    if (in_place_meta_) {
      // PyTorch's own checks of shape, dtype and overlapping memory.
      Stack arguments = meta_arguments(stack, base, plan_->num_arguments);
      in_place_meta_->call(&arguments);
    }
    results = meta_arguments(stack, base, plan_->arguments.size());
    meta_.call(&results);
    check_shapes_written(stack, base, results);
    return results;
  } catch (const c10::NotImplementedError&) {
    // An elementwise operator may mean these dtypes. Else there is no Meta kernel: an in-place
    // operator's results are shaped like what it overwrites; any other operator's shapes are known
    // only once it has run.
    if (in_place_meta_) cpu_kernel_.check_in_place(op_, stack, base);
    if (cpu_kernel_.is_elementwise()) cpu_kernel_.call(stack, base, CpuKernel::Show::Dtypes);
    if (!overwrites_all_results()) return std::nullopt;
    results.clear();
    for (const OperatorPlan::Write& w : plan_->writes) {
      results.push_back(without_memory(stack[base + w.argument]));
    }
    return results;
  } catch (...) {
    if (in_place_meta_) cpu_kernel_.check_in_place(op_, stack, base);
    cpu_kernel_.call(stack, base, CpuKernel::Show::Values);
    check_lists(stack, base);
    throw;
  }
}

// 0-dim tensors of the CPU are numbers, but not to every operator that takes a list.
void Recorder::check_lists(const Stack& stack, size_t base) const {
  for (size_t i = 0; i < plan_->num_arguments; ++i) {
    if (!stack[base + i].isTensorList()) continue;
    for (const c10::IValue& e : stack[base + i].toListRef()) {
      const at::Tensor& t = e.toTensor();
      if (t.defined() && t.is_cpu()) fail_of_cpu_tensor(op_, stack, base, static_cast<int>(i), t);
    }
  }
}

Stack Recorder::meta_arguments(const Stack& stack, size_t base, size_t count) const {
  Stack arguments;
  for (size_t i = 0; i < count; ++i) {
    const bool is_generator =
        i < plan_->arguments.size() && plan_->arguments[i].type == ArgumentType::Generator;
    arguments.push_back(is_generator ? c10::IValue() : without_memory(stack[base + i]));
  }
  return arguments;
}

void Recorder::check_out_dtypes(const KnownCall& entry, const Stack& stack, size_t base) const {
  const bool differs =
      std::any_of(plan_->writes.begin(), plan_->writes.end(), [&](const OperatorPlan::Write& w) {
        const c10::IValue& v = stack[base + w.argument];
        const Geometry* g = entry.signature->outputs[entry.outputs[w.output].first];
        return w.is_out && g != nullptr && v.isTensor() && v.toTensor().scalar_type() != g->dtype;
      });
  if (!differs) return;
  cpu_kernel_.check_outputs(op_, stack, base);
  if (!out_meta_) return;
  Stack arguments = meta_arguments(stack, base, plan_->num_arguments);
  for (const OperatorPlan::Write& w : plan_->writes) {
    const c10::IValue& v = stack[base + w.argument];
    if (!w.is_out || !v.isTensor()) continue;
    arguments[w.argument] =
        meta_tensor(*lazy::intern_contiguous(v.toTensor().scalar_type(), {0}), false);
  }
  try {
    out_meta_->call(&arguments);
  } catch (const c10::NotImplementedError&) {
    // No Meta kernel: what can be converted is permitted.
  }
}

// Some Meta kernels of operators in place look at the result's shape only.
void Recorder::check_shapes_written(const Stack& stack, size_t base, const Stack& results) const {
  for (const OperatorPlan::Write& w : plan_->writes) {
    const c10::IValue& written = stack[base + w.argument];
    const c10::IValue& result = results[w.output];
    if (w.is_out || !written.isTensor() || !result.isTensor()) continue;
    if (!written.toTensor().defined() || !result.toTensor().defined()) continue;
    TORCH_CHECK(written.toTensor().sizes() == result.toTensor().sizes(), "output with shape ",
                written.toTensor().sizes(), " doesn't match the broadcast shape ",
                result.toTensor().sizes());
  }
}

bool Recorder::overwrites_all_results() const {
  if (plan_->writes.size() != plan_->list_output.size()) return false;
  return std::none_of(plan_->writes.begin(), plan_->writes.end(),
                      [](const OperatorPlan::Write& w) { return w.is_out; });
}

void Recorder::write_outputs(const KnownCall& entry, const c10::intrusive_ptr<lazy::Node>& node,
                             int device, Stack& stack, size_t base) const {
  const auto write_one = [&](const at::Tensor& target, uint32_t output, bool is_out) {
    const Geometry* g = entry.signature->outputs[output];
    if (g == nullptr || !target.defined()) return;
    lazy::TensorImpl* impl = lazy::as_lazy(target);
    TXLA_CHECK(impl != nullptr, plan_->target->name, ": expected the output on xla:", device,
               ", got a tensor on ", target.device().str(), ". Create it with device='xla'.");
    if (is_out) {
      prepare_out(plan_->target->name, target, *g);
    } else {
      ops::check_can_cast(g->dtype, impl->geometry()->dtype);
    }
    write(*impl, cast({node, output}, impl->geometry()->dtype, device));
  };
  for (const OperatorPlan::Write& w : plan_->writes) {
    const uint32_t first = entry.outputs[w.output].first;
    const c10::IValue& v = stack[base + w.argument];
    if (v.isNone()) continue;
    if (w.only_with == OperatorPlan::Write::kNever) continue;
    if (w.only_with >= 0 && stack[base + w.only_with].isNone()) continue;
    if (v.isTensor()) {
      write_one(v.toTensor(), first, w.is_out);
    } else {
      uint32_t k = first;
      for (const c10::IValue& e : v.toListRef()) {
        const at::Tensor& t = e.toTensor();
        write_one(t, k++, w.is_out);
        if (counts_list_writes_ && t.defined()) t.unsafeGetTensorImpl()->bump_version();
      }
    }
  }
}

void Recorder::make_results(const KnownCall& entry, const c10::intrusive_ptr<lazy::Node>& node,
                            int device, Results& results) const {
  for (const ReturnPlan& r : plan_->returns) {
    if (r.argument >= 0) continue;
    const auto [first, count] = entry.outputs[r.output];
    const auto tensor_of = [&](uint32_t k) {
      const Geometry* g = entry.signature->outputs[k];
      return g == nullptr ? at::Tensor() : lazy::make_tensor({node, k}, g, device);
    };
    if (!plan_->list_output[r.output]) {
      results.emplace_back(tensor_of(first));
      continue;
    }
    c10::List<at::Tensor> list;
    list.reserve(count);
    for (uint32_t k = first; k < first + count; ++k) list.push_back(tensor_of(k));
    results.emplace_back(std::move(list));
  }
}

bool Recorder::is_for_another_device(const Stack& stack, size_t base) const {
  if (!device_argument_) return false;
  const c10::IValue& given = stack[base + *device_argument_];
  if (given.isNone()) return false;
  const at::Device device = given.toDevice(), own = stack[base].toTensor().device();
  const int index = device.has_index() ? device.index() : current_device();
  return device.type() != own.type() || index != own.index();
}

Recorder::Instead Recorder::record(Stack& stack, size_t base, Results& results) {
  if (is_for_another_device(stack, base)) {
    return [this, base](Stack* stack) {
      c10::IValue& model = (*stack)[base];
      const at::Device there = (*stack)[base + *device_argument_].toDevice();
      model = at::empty_like(model.toTensor(), model.toTensor().options().device(there));
      op_.callBoxed(stack);
    };
  }
  if (traits_.checks_numbers != nullptr) traits_.checks_numbers({stack, base});
  if (plan_->dtype_as_out >= 0 && stack[base + plan_->dtype_as_out].isNone()) {
    stack[base + plan_->dtype_as_out] = stack.back().toTensor().scalar_type();
  }
  int device;
  {
    const lazy::GraphLock lock;
    Scan s(*plan_->target);
    visit_arguments(*plan_, stack, base, s);
    if (s.stranger) {
      return [this](Stack* stack) {
        op_.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::Meta), stack);
      };
    }
    if (s.on_cpu != nullptr) {
      return [this, base, argument = s.on_cpu_argument, tensor = *s.on_cpu](Stack* stack) {
        upload_index_or_fail(op_, *stack, base, argument, tensor);
        (*this)(op_, {}, stack);
      };
    }
    device = s.device < 0 ? current_device() : s.device;
    if (plan_->is_random) {
      Number seed;
      seed.integer = static_cast<int64_t>(seed_for(stack, base, *plan_, device));
      s.numbers.push_back(seed);
    }
    const util::Hash128 key = s.memo_key();
    std::shared_ptr<const KnownCall> entry;
    if (const auto* known = memo_.find(key)) {
      entry = *known;
    } else {
      // May record this very operator.
      entry = std::make_shared<const KnownCall>(make_known(stack, base, device));
      memo_.add(key, entry);
    }
    if (entry->route != Route::Record) {
      return [this](Stack* stack) { host_fallback(op_, stack); };
    }
    if (!entry->signature->outputs.empty() && entry->signature->outputs[0] != nullptr) {
      converted_numbers_.check(stack, base, *entry->signature->outputs[0]);
    }
    written_memory_.check(stack, base);
    if (!plan_->writes.empty() && plan_->writes[0].is_out) {
      check_out_dtypes(*entry, stack, base);
    }
    if (traits_.suspects_values != nullptr &&
        traits_.suspects_values({stack, base, known_values})) {
      cpu_kernel_.call(stack, base, CpuKernel::Show::Values);
    }
    counter_.add();
    const debug::OftenTimed::Scope scope(recording_time);
    if (is_constant_) s.operands.clear();
    const auto node =
        lazy::make_node(entry->signature, std::move(s.operands), std::move(s.numbers), device);
    write_outputs(*entry, node, device, stack, base);
    make_results(*entry, node, device, results);
    if (is_made_like_ && plan_->writes.empty()) {
      split_like(stack[base].toTensor(), results[0].toTensor());
    }
  }
  after_record(device);
  return nullptr;
}

void Recorder::operator()(const c10::OperatorHandle&, c10::DispatchKeySet, Stack* stack) {
  const size_t base = stack->size() - plan_->num_arguments;
  Results results;
  if (const Instead instead = record(*stack, base, results)) return instead(stack);
  Results all;
  c10::IValue* result = results.begin();
  for (const ReturnPlan& r : plan_->returns) {
    all.push_back(std::move(r.argument >= 0 ? (*stack)[base + r.argument] : *result++));
  }
  torch::jit::drop(*stack, plan_->num_arguments);
  for (c10::IValue& r : all) stack->push_back(std::move(r));
}

}  // namespace torch_xla::dispatch
