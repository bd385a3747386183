#include "dispatch/judge/cpu_kernel.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <string_view>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "dispatch/calls/meta.h"
#include "dispatch/calls/substitute.h"
#include "dispatch/judge/known_values.h"
#include "executor/program/lower.h"
#include "executor/run/runtime.h"
#include "lazy/tensor.h"

namespace torch_xla::dispatch {
namespace {

at::Tensor zeros(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));
  // Large blocks are pages of zeros, which take no memory until they are written to.
  void* memory = std::calloc(std::max<size_t>(bytes, 1), 1);
  if (memory == nullptr) throw std::bad_alloc();
  return at::from_blob(
      memory, sizes, strides, [](void* p) { std::free(p); }, at::device(at::kCPU).dtype(dtype));
}

// The sizes that a stand-in has in place of `sizes`; `rows` are those of the call's first tensor.
std::vector<int64_t> shown_sizes(std::vector<int64_t> sizes, CpuKernel::Show show, int64_t rows) {
  using Show = CpuKernel::Show;
  if (show == Show::Dtypes) std::ranges::fill(sizes, 1);
  if (show == Show::Corner) {
    for (int64_t& size : sizes) size = std::min<int64_t>(size, 2);
  }
  const bool is_batch = sizes.size() > 1 && sizes[0] == rows;
  if (show == Show::Row && is_batch) sizes[0] = std::min<int64_t>(rows, 1);
  return sizes;
}

// An argument of the same call on the CPU. `rows` is that of the first tensor, once it is known.
c10::IValue on_cpu(const c10::IValue& v, CpuKernel::Show show, std::optional<int64_t>& rows) {
  return substitute(v, at::kCPU, [&](const at::Tensor& t) {
    lazy::TensorImpl* impl = t.defined() ? lazy::as_lazy(t) : nullptr;
    if (impl == nullptr) return t;
    const lazy::Geometry& g = *impl->geometry();
    if (!rows) rows = g.sizes.empty() ? 0 : g.sizes[0];
    if (show != CpuKernel::Show::Values) {
      const std::vector<int64_t> sizes = shown_sizes(g.sizes, show, *rows);
      return zeros(g.dtype, sizes, lazy::intern_contiguous(g.dtype, sizes)->strides);
    }
    if (std::optional<at::Tensor> known = known_values(t)) return *known;
    return zeros(g.dtype, g.sizes, g.strides);
  });
}

std::vector<at::ScalarType> dtypes_of(const lazy::Signature& signature) {
  std::vector<at::ScalarType> dtypes;
  for (const lazy::OperandInfo& info : signature.operands) dtypes.push_back(info.geometry->dtype);
  return dtypes;
}

// A backward call takes results of this device's forward pass, in dtypes of its own.
bool is_backward(const OperatorPlan& plan) {
  return plan.target->name.find("_backward") != std::string::npos;
}

bool computes_floats(const lazy::Signature& signature) {
  return std::all_of(
      signature.operands.begin(), signature.operands.end(),
      [](const lazy::OperandInfo& info) { return at::isFloatingType(info.geometry->dtype); });
}

// Lowerings give integers and complex numbers a meaning that PyTorch's kernels do not.
bool means_others(const OperatorPlan& plan, const lazy::Signature& signature) {
  bool complex = false;
  for (const lazy::OperandInfo& info : signature.operands) {
    if (at::isFloatingType(info.geometry->dtype)) return false;
    complex = complex || at::isComplexType(info.geometry->dtype);
  }
  return !signature.operands.empty() && (complex || !plan.target->traits->takes_integers);
}

// Every CPU kernel of floats knows float and double; not all know the others.
bool takes_common_dtypes(const lazy::Signature& signature) {
  bool common = false;
  for (const lazy::OperandInfo& info : signature.operands) {
    const at::ScalarType dtype = info.geometry->dtype;
    if (dtype == at::kHalf || dtype == at::kBFloat16 || dtype == at::kBool) return false;
    common = common || at::isFloatingType(dtype);
  }
  return common;
}

// Returns whether a kernel refuses dtypes: sizes and values that it is shown may be others than the
// call's.
bool blames_dtypes(const c10::Error& error) {
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) return true;
  const std::string_view words = error.what_without_backtrace();
  const auto says = [&](std::string_view word) { return words.find(word) != words.npos; };
  return says("dtype") || says("scalar type") || says("same type") || says("scalar_type") ||
         says("out type") || says("output type") || says("can't be cast") ||
         says("not supported for");
}

// Throws what `call` throws about dtypes. A corner may have wrong sizes, and zeros be wrong values:
// other words do not count.
template <typename Call>
void judge_dtypes(const Call& call) {
  using Show = CpuKernel::Show;
  for (const Show show : {Show::Corner, Show::Row, Show::Values}) {
    try {
      call(show);
      return;
    } catch (const c10::Error& e) {
      if (show == Show::Values && blames_dtypes(e)) throw;
    } catch (const std::exception&) {
      // not about dtypes
    }
  }
}

}  // namespace

CpuKernel::CpuKernel(const OperatorPlan& plan)
    : plan_(plan),
      elementwise_(has_tag(*plan.target, at::Tag::pointwise) ||
                   plan.target->name.starts_with("aten::_foreach_")) {}

void CpuKernel::call(const torch::jit::Stack& stack, size_t base, Show show) const {
  call(plan_.target->handle, plan_.arguments.size(), stack, base, show);
}

void CpuKernel::call(const c10::OperatorHandle& op, size_t count, const torch::jit::Stack& stack,
                     size_t base, Show show) const {
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU)) return;
  torch::jit::Stack arguments;
  std::optional<int64_t> rows;
  try {
    for (size_t i = 0; i < count; ++i) {
      if (i >= plan_.arguments.size()) {
        const at::Tensor& out = stack[base + i].toTensor();
        // The kernel resizes it.
        arguments.push_back(out.defined() ? at::empty({0}, out.scalar_type()) : out);
        continue;
      }
      // The user's generators are left alone.
      const bool is_generator = plan_.arguments[i].type == ArgumentType::Generator;
      arguments.push_back(is_generator ? c10::IValue(at::detail::createCPUGenerator())
                                       : on_cpu(stack[base + i], show, rows));
    }
  } catch (const std::bad_alloc&) {
    return;  // larger than this machine
  }
  const c10::impl::ExcludeDispatchKeyGuard exclude(below_autograd());
  op.callBoxed(&arguments);
}

void CpuKernel::check_lowering(const lazy::Signature& signature, const torch::jit::Stack& stack,
                               size_t base) const {
  bool on_host = false;
  check_empty(signature, stack, base);
  if (signature.expansion == nullptr) {
    try {
      on_host = executor::try_lowering(signature, executor::Runtime::get().target());
    } catch (const c10::TypeError&) {
      // A dtype that the platform lacks. The run says so: of `x * y`, Python would make another
      // error of a TypeError.
      return;
    } catch (...) {
      call(stack, base, Show::Values);
      throw;
    }
  }
  if (!elementwise_ && !is_backward(plan_)) check_mix(signature, stack, base);
  const bool probe = (elementwise_ && !computes_floats(signature)) ||
                     (on_host && !takes_common_dtypes(signature)) || means_others(plan_, signature);
  if (probe) check_dtypes(signature, stack, base);
}

void CpuKernel::check_empty(const lazy::Signature& signature, const torch::jit::Stack& stack,
                            size_t base) const {
  constexpr int64_t kMaxElements = 1 << 20;  // of what else the kernel is shown
  const auto numel = [](const lazy::OperandInfo& info) { return info.geometry->numel; };
  if (signature.arguments.empty() || is_backward(plan_)) return;
  const lazy::Argument& self = signature.arguments[0];
  if (self.kind != lazy::Argument::Kind::Tensor) return;
  if (numel(signature.operands[self.first]) != 0) return;
  if (std::ranges::max(signature.operands, {}, numel).geometry->numel > kMaxElements) return;
  call(stack, base, Show::Values);
}

void CpuKernel::check_mix(const lazy::Signature& signature, const torch::jit::Stack& stack,
                          size_t base) const {
  const std::vector<at::ScalarType> dtypes = dtypes_of(signature);
  const auto mixed = [&](at::ScalarType dtype) { return dtype != dtypes[0]; };
  if (std::ranges::none_of(dtypes, mixed) || known_mixes_.contains(dtypes)) return;
  judge_dtypes([&](Show show) { call(stack, base, show); });
  known_mixes_.insert(dtypes);
}

void CpuKernel::check_outputs(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                              size_t base) const {
  std::vector<at::ScalarType> dtypes;
  for (size_t i = 0; i < plan_.num_arguments; ++i) {
    const c10::IValue& v = stack[base + i];
    if (v.isTensor() && v.toTensor().defined()) dtypes.push_back(v.toTensor().scalar_type());
    if (!v.isTensorList()) continue;
    if (i >= plan_.arguments.size()) return;  // lists of outputs have words of their own
    for (const c10::IValue& e : v.toListRef()) dtypes.push_back(e.toTensor().scalar_type());
  }
  if (known_outputs_.contains(dtypes)) return;
  judge_dtypes([&](Show show) { call(op, plan_.num_arguments, stack, base, show); });
  known_outputs_.insert(std::move(dtypes));
}

void CpuKernel::check_in_place(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                               size_t base) const {
  if (!elementwise_) return;
  try {
    call(op, plan_.num_arguments, stack, base, Show::Dtypes);
  } catch (const c10::Error& e) {
    if (blames_dtypes(e)) throw;
  }
}

void CpuKernel::check_dtypes(const lazy::Signature& signature, const torch::jit::Stack& stack,
                             size_t base) const {
  // Returns whether the kernel computes. It may know the dtypes and not like the values (zeros for
  // a matrix to invert) or, of a corner, the sizes.
  const auto computes = [&](Show show) {
    try {
      call(stack, base, show);
      return true;
    } catch (const c10::NotImplementedError&) {
      throw;
    } catch (const c10::Error& e) {
      if (show == Show::Values && blames_dtypes(e)) throw;
      return false;
    } catch (const std::exception&) {
      return false;
    }
  };
  if (elementwise_) {
    computes(Show::Dtypes);
    return;
  }
  std::vector<at::ScalarType> dtypes = dtypes_of(signature);
  // A call of full size may take half a second.
  if (known_dtypes_.contains(dtypes) || computes(Show::Corner)) return;
  if (!computes(Show::Row)) computes(Show::Values);
  known_dtypes_.insert(std::move(dtypes));
}

}  // namespace torch_xla::dispatch
