// Puts a kernel on the XLA key for every operator that needs one: hand-written ones for storage,
// copies and views, the recorder for the rest.
#include "dispatch/register.h"

#include <set>

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_assert_async_native.h>
#include <ATen/ops/_functional_assert_async_native.h>
#include <ATen/ops/_native_batch_norm_legit.h>
#include <ATen/ops/_native_batch_norm_legit_no_training.h>
#include <ATen/ops/_propagate_xla_data_native.h>
#include <ATen/ops/_to_copy_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include "dispatch/call.h"
#include "dispatch/context.h"
#include "dispatch/dropout.h"
#include "dispatch/factory.h"
#include "dispatch/fallback.h"
#include "dispatch/list_write.h"
#include "dispatch/mask_index.h"
#include "dispatch/recorder.h"
#include "dispatch/resize.h"
#include "dispatch/view_kernel.h"
#include "executor/transfer.h"
#include "lazy/memory.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::TensorImpl;
using lazy::Value;

// --- memory --------------------------------------------------------------------------------

int device_index_of(std::optional<at::Device> device) {
  return device ? current_device_or(*device) : current_device();
}

at::Tensor uninitialized(const at::Tensor& meta, int device) {
  const Geometry* g = lazy::intern(meta.scalar_type(), meta.sizes(), meta.strides());
  at::Tensor made = lazy::make_tensor({}, g, device);
  const at::Context& context = at::globalContext();
  if (context.deterministicAlgorithms() && context.deterministicFillUninitializedMemory()) {
    at::native::fill_empty_deterministic_(made);
  }
  return made;
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout> layout, std::optional<at::Device> device,
                 std::optional<bool> pin_memory, std::optional<at::MemoryFormat> memory_format) {
  return uninitialized(at::detail::empty_meta(C10_AS_INTARRAYREF_SLOW(size), dtype, layout,
                                              at::Device(at::kMeta), pin_memory, memory_format),
                       device_index_of(device));
}

// PyTorch's own takes xla for a device whose tensors have no strides.
at::Tensor empty_like(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout> layout, std::optional<at::Device> device,
                      std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  const bool keeps = format.value_or(at::MemoryFormat::Preserve) == at::MemoryFormat::Preserve;
  const bool has_gaps =
      layout.value_or(at::kStrided) == at::kStrided && !self.is_non_overlapping_and_dense();
  if (!keeps || !has_gaps) {
    return at::native::empty_like(self, dtype, layout, device, pin_memory, format);
  }
  const auto options = self.options().dtype(dtype ? *dtype : self.scalar_type());
  return at::empty_strided(
      self.sizes(), at::infer_dense_strides(self.sizes(), self.strides()),
      options.device(device.value_or(self.device())).pinned_memory(pin_memory));
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                         std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return uninitialized(
      at::detail::empty_strided_meta(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                     dtype, layout, at::Device(at::kMeta), pin_memory),
      device_index_of(device));
}

at::Tensor new_empty_strided(const at::Tensor& self, c10::SymIntArrayRef size,
                             c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                             std::optional<at::Layout> layout, std::optional<at::Device> device,
                             std::optional<bool> pin_memory) {
  return at::empty_strided_symint(size, stride, dtype.value_or(self.scalar_type()), layout,
                                  device.value_or(self.device()), pin_memory);
}

Value zeros(const Geometry& geometry, int device) {
  return call("aten::zeros", device,
              {c10::IValue(geometry.sizes), c10::IValue(static_cast<int64_t>(geometry.dtype))},
              lazy::intern_contiguous(geometry.dtype, geometry.sizes));
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size,
                          std::optional<at::MemoryFormat> memory_format) {
  TensorImpl* impl = lazy::as_lazy(self);
  TXLA_CHECK(impl != nullptr, "resize_: expected an xla tensor, got one on ", self.device().str());
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  const at::ScalarType dtype = self.scalar_type();
  const Geometry* to =
      self.sizes() == sizes ? impl->geometry() : lazy::intern_contiguous(dtype, sizes);
  if (memory_format) {
    TORCH_CHECK(*memory_format != at::MemoryFormat::Preserve, "Unsupported memory format",
                *memory_format);
    const at::Tensor meta = at::detail::empty_meta(sizes, dtype, std::nullopt, std::nullopt,
                                                   std::nullopt, memory_format);
    to = lazy::intern(dtype, sizes, meta.strides());
  }
  const lazy::GraphLock lock;
  resize(*impl, to);
  return self;
}

// --- copies --------------------------------------------------------------------------------

at::Tensor& copy_within(at::Tensor& self, TensorImpl& to, const at::Tensor& src, TensorImpl& from) {
  if (&to == &from) return self;
  if (&to.lazy_storage() == &from.lazy_storage()) at::assert_no_partial_overlap(self, src);
  const lazy::GraphLock lock;
  const int device = to.device_index();
  Value value = from.read();
  if (from.device_index() != device) {
    value = executor::copy_to_device(value, from.device_index(), device);
  }
  value = cast(value, to.geometry()->dtype, device);
  if (src.sizes() != self.sizes()) {
    // Raises PyTorch's error where the shapes do not fit.
    (void)src.expand(self.sizes());
    value = expand(value, self.sizes(), device);
  }
  write(to, std::move(value));
  return self;
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool /*non_blocking*/) {
  TensorImpl* to = lazy::as_lazy(self);
  TensorImpl* from = lazy::as_lazy(src);
  if (to != nullptr) at::assert_no_internal_overlap(self);
  if (to != nullptr && from != nullptr) return copy_within(self, *to, src, *from);
  if (to != nullptr) {
    TXLA_CHECK(src.is_cpu(), "copy_: expected a source on cpu or xla, got ", src.device().str(),
               ". Move it to cpu first.");
    const at::Tensor host =
        src.resolve_conj().resolve_neg().to(self.scalar_type()).expand(self.sizes());
    Value value = executor::upload(host, to->device_index());
    const lazy::GraphLock lock;
    write(*to, std::move(value));
    return self;
  }
  TXLA_CHECK(from != nullptr, "copy_: expected an xla tensor among ", self.device().str(), " and ",
             src.device().str(), ".");
  return self.copy_(fetch({src})[0]);
}

// PyTorch's own takes XLA for a device without strides.
at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                   std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> memory_format) {
  const bool preserve =
      memory_format.value_or(at::MemoryFormat::Preserve) == at::MemoryFormat::Preserve;
  const bool is_ours = lazy::as_lazy(self) != nullptr;
  const bool is_plain =
      is_ours || (self.is_cpu() && self.layout() == at::kStrided && !self.is_quantized());
  const bool to_xla = device ? device->is_xla() : is_ours;
  const bool strided = layout.value_or(at::kStrided) == at::kStrided;
  if (!is_plain || !to_xla || !preserve || !strided || pin_memory.value_or(false)) {
    return at::compositeexplicitautograd::_to_copy(self, dtype, layout, device, pin_memory,
                                                   non_blocking, memory_format);
  }
  const at::ScalarType to = dtype.value_or(self.scalar_type());
  std::vector<int64_t> strides = self.strides().vec();
  if (!self.is_non_overlapping_and_dense()) {
    strides = at::infer_dense_strides(self.sizes(), strides);
  }
  at::Tensor copy = at::empty_strided(
      self.sizes(), strides, self.options().dtype(to).device(device.value_or(self.device())));
  return copy.copy_(self, non_blocking);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  at::Tensor target = dst;
  copy_(target, self, non_blocking);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

std::vector<at::Tensor> to_cpu(at::TensorList tensors) { return fetch(tensors.vec()); }

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  static const debug::Counter counter("aten::_local_scalar_dense");
  counter.add();
  return fetch({self})[0].item();
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  if (self.sizes() != other.sizes()) return false;
  if (self.numel() == 0) return true;
  return self.eq(other).all().item<bool>();
}

bool is_set_to(const at::Tensor& self, const at::Tensor& src) {
  return self.storage().unsafeGetStorageImpl() == src.storage().unsafeGetStorageImpl() &&
         self.storage_offset() == src.storage_offset() && self.sizes() == src.sizes() &&
         self.strides() == src.strides();
}

// Memory is given back when the work that uses it is done, whatever the stream.
void record_stream(at::Tensor& /*self*/, c10::Stream /*stream*/) {}

// The schema hides that the result shares memory, which kron's out= form relies on.
at::Tensor unsafe_view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return self.view_symint(size);
}

// torch._convolution comes here instead of to convolution.
at::Tensor convolution_overrideable(const at::Tensor& input, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias, at::IntArrayRef stride,
                                    at::IntArrayRef padding, at::IntArrayRef dilation,
                                    bool transposed, at::IntArrayRef output_padding,
                                    int64_t groups) {
  return at::convolution(input, weight, bias, stride, padding, dilation, transposed, output_padding,
                         groups);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward_overrideable(
    const at::Tensor& grad, const at::Tensor& input, const at::Tensor& weight,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups, std::array<bool, 3> wanted) {
  const int64_t channels = transposed ? weight.size(1) * groups : weight.size(0);
  const at::IntArrayRef bias_sizes(channels);
  return at::convolution_backward(grad, input, weight, bias_sizes, stride, padding, dilation,
                                  transposed, output_padding, groups, wanted);
}

// The result has the dtype of out=.
at::Tensor& bernoulli_out(const at::Tensor& self, std::optional<at::Generator> generator,
                          at::Tensor& out) {
  return out.resize_(self.sizes()).bernoulli_(self, std::move(generator));
}

// The schema hides that running statistics are written; the operators used here tell.
std::tuple<at::Tensor, at::Tensor, at::Tensor> native_batch_norm(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps) {
  const bool has_statistics = running_mean && running_mean->defined();
  if (!has_statistics) {
    return at::_native_batch_norm_legit(input, weight, bias, training, momentum, eps);
  }
  if (!training) {
    return at::_native_batch_norm_legit_no_training(input, weight, bias, *running_mean,
                                                    *running_var, momentum, eps);
  }
  at::Tensor mean = *running_mean;
  at::Tensor variance = *running_var;
  return at::_native_batch_norm_legit(input, weight, bias, mean, variance, training, momentum, eps);
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> native_batch_norm_out(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, const std::optional<at::Tensor>& running_mean,
    const std::optional<at::Tensor>& running_var, bool training, double momentum, double eps,
    at::Tensor& out, at::Tensor& save_mean, at::Tensor& save_invstd) {
  const auto results = dispatch::native_batch_norm(input, weight, bias, running_mean, running_var,
                                                   training, momentum, eps);
  write_out("native_batch_norm", out, std::get<0>(results), {input});
  write_out("native_batch_norm", save_mean, std::get<1>(results), {input});
  write_out("native_batch_norm", save_invstd, std::get<2>(results), {input});
  return {out, save_mean, save_invstd};
}

std::tuple<at::Tensor&, at::Tensor&, at::Tensor&> native_batch_norm_legit_out(
    const at::Tensor& input, const std::optional<at::Tensor>& weight,
    const std::optional<at::Tensor>& bias, at::Tensor& running_mean, at::Tensor& running_var,
    bool training, double momentum, double eps, at::Tensor& out, at::Tensor& save_mean,
    at::Tensor& save_invstd) {
  return dispatch::native_batch_norm_out(input, weight, bias, running_mean, running_var, training,
                                         momentum, eps, out, save_mean, save_invstd);
}

// --- the recorder --------------------------------------------------------------------------

const std::set<std::string> kHandWritten = {"aten::empty.memory_format",
                                            "aten::empty_like",
                                            "aten::empty_strided",
                                            "aten::new_empty_strided",
                                            "aten::resize_",
                                            "aten::copy_",
                                            "aten::_to_copy",
                                            "aten::_copy_from",
                                            "aten::_copy_from_and_resize",
                                            "aten::_to_cpu",
                                            "aten::_local_scalar_dense",
                                            "aten::equal",
                                            "aten::is_set_to",
                                            "aten::record_stream",
                                            "aten::_unsafe_view",
                                            "aten::native_batch_norm",
                                            "aten::native_batch_norm.out",
                                            "aten::_native_batch_norm_legit.out",
                                            "aten::set_.source_Tensor",
                                            "aten::set_.source_Storage",
                                            "aten::set_.source_Storage_storage_offset",
                                            "aten::set_",
                                            "aten::as_strided",
                                            "aten::as_strided_",
                                            "aten::as_strided_copy",
                                            "aten::_has_compatible_shallow_copy_type"};

// Composites whose parts keep autograd, conjugation or aliasing right.
const std::set<std::string> kStayComposite = {"aten::lift",
                                              "aten::lift_fresh",
                                              "aten::_fw_primal",
                                              "aten::_make_dual",
                                              "aten::_unpack_dual",
                                              "aten::new_empty",
                                              "aten::set_data",
                                              "aten::is_pinned",
                                              "aten::_pin_memory",
                                              "aten::detach_",
                                              "aten::_has_same_storage_numel"};

bool is_view(const c10::FunctionSchema& schema) {
  for (const auto& r : schema.returns()) {
    if (r.alias_info() != nullptr && !r.alias_info()->isWrite()) return true;
  }
  return false;
}

bool wants_recorder(const c10::OperatorHandle& op, const Plan& plan) {
  const bool has_rule = plan.target->rule != nullptr;
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    // Its autograd would be lost, but where autograd has a formula of its own.
    return has_rule && op.hasKernelForDispatchKey(c10::DispatchKey::Autograd);
  }
  if (op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd)) return has_rule;
  return true;
}

std::set<std::string>& recorded() {
  static auto& names = *new std::set<std::string>;
  return names;
}

// Records every operator of the library's namespace that wants it.
void register_recorders(torch::Library& library, const std::string& prefix) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with(prefix)) continue;
    const auto op = dispatcher.findSchema(name);
    const std::string full = full_name(name);
    if (!op || kHandWritten.count(full) != 0 || kStayComposite.count(full) != 0) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::XLA) || is_view(op->schema())) continue;
    std::unique_ptr<Plan> plan = make_plan(*op, nullptr);
    const std::string local = full.substr(prefix.size());
    if (plan == nullptr) {
      // The fallback below serves the others.
      if (auto factory = FactoryOutKernel::make(*op)) {
        library.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(factory)));
      }
      continue;
    }
    if (!wants_recorder(*op, *plan)) continue;
    auto recorder = std::make_unique<Recorder>(*op, std::move(plan));
    recorded().insert(full);
    if (takes_masks(full)) {
      library.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                      std::make_unique<MaskIndexKernel>(std::move(recorder))));
    } else if (writes_list(*op)) {
      library.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(
                                      std::make_unique<ListWriteKernel>(std::move(recorder))));
    } else {
      library.impl(local.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::move(recorder)));
    }
  }
}

void boxed_fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  host_fallback(op, stack);
}

}  // namespace

bool is_recorded(const c10::OperatorHandle& op) {
  return recorded().count(full_name(op.operator_name())) != 0;
}

void register_kernels() {
  lazy::zeros_value = zeros;
  lazy::read_over = read_over;
  static auto& aten =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::XLA, __FILE__, __LINE__);
  // What comes from the CPU has its key.
  static auto& cpu =
      *new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  cpu.impl("_to_copy", TORCH_FN(to_copy));
  // Functionalization tells xla what became of a value, which is nothing for a batch of vmap
  // either.
  static auto& batched = *new torch::Library(
      torch::Library::IMPL, "aten", c10::DispatchKey::FuncTorchBatched, __FILE__, __LINE__);
  batched.impl("_propagate_xla_data", TORCH_FN(at::native::_propagate_xla_data));
  aten.impl("empty.memory_format", TORCH_FN(empty));
  aten.impl("empty_like", TORCH_FN(empty_like));
  aten.impl("empty_strided", TORCH_FN(empty_strided));
  aten.impl("new_empty_strided", TORCH_FN(new_empty_strided));
  aten.impl("resize_", TORCH_FN(resize_));
  aten.impl("copy_", TORCH_FN(copy_));
  aten.impl("_to_copy", TORCH_FN(to_copy));
  aten.impl("_copy_from", TORCH_FN(copy_from));
  aten.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  aten.impl("_to_cpu", TORCH_FN(to_cpu));
  aten.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  aten.impl("equal", TORCH_FN(equal));
  aten.impl("is_set_to", TORCH_FN(is_set_to));
  aten.impl("record_stream", TORCH_FN(record_stream));
  aten.impl("_unsafe_view", TORCH_FN(unsafe_view));
  // Programs cannot fail: what is asserted is computed and read.
  aten.impl("_assert_async", TORCH_FN(at::native::_assert_async_cpu));
  aten.impl("_assert_async.msg", TORCH_FN(at::native::_assert_async_msg_cpu));
  aten.impl("_functional_assert_async.msg", TORCH_FN(at::native::_functional_assert_async_msg_cpu));
  aten.impl("convolution_overrideable", TORCH_FN(convolution_overrideable));
  aten.impl("convolution_backward_overrideable", TORCH_FN(convolution_backward_overrideable));
  aten.impl("bernoulli.out", TORCH_FN(bernoulli_out));
  aten.impl("native_batch_norm", TORCH_FN(native_batch_norm));
  aten.impl("native_batch_norm.out", TORCH_FN(native_batch_norm_out));
  aten.impl("_native_batch_norm_legit.out", TORCH_FN(native_batch_norm_legit_out));
  register_views(aten);
  register_factories(aten);
  register_dropout();
  register_recorders(aten, "aten::");
  static auto& own = *new torch::Library(torch::Library::IMPL, "torch_xla", c10::DispatchKey::XLA,
                                         __FILE__, __LINE__);
  register_recorders(own, "torch_xla::");
  static auto& all =
      *new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::XLA, __FILE__, __LINE__);
  all.fallback(torch::CppFunction::makeFromBoxedFunction<&boxed_fallback>());
}

}  // namespace torch_xla::dispatch
