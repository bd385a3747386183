// Memory and copies: tensors without values, between devices and dtypes, and what is read from
// them.
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_assert_async_native.h>
#include <ATen/ops/_functional_assert_async_native.h>
#include <ATen/ops/_propagate_xla_data_native.h>
#include <ATen/ops/_to_copy_compositeexplicitautograd_dispatch.h>
#include <ATen/ops/empty_like_native.h>
#include <ATen/ops/empty_permuted.h>
#include <ATen/ops/empty_strided.h>
#include <torch/library.h>

#include "debug/metrics.h"
#include "dispatch/calls/call.h"
#include "dispatch/record/context.h"
#include "dispatch/record/fallback.h"
#include "dispatch/sharding/mark_sharding.h"
#include "dispatch/views/resize.h"
#include "executor/run/transfer.h"
#include "executor/step/deferred.h"
#include "executor/step/read.h"
#include "lazy/tensor.h"
#include "ops/rules.h"
#include "util/error.h"

namespace torch_xla::dispatch {
namespace {

using lazy::Geometry;
using lazy::TensorImpl;
using lazy::Value;

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

// All of its own storage, and not a view of one, so that it can be split.
at::Tensor empty_permuted(c10::SymIntArrayRef size, at::IntArrayRef layout_of_dims,
                          std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
                          std::optional<at::Device> device, std::optional<bool> pin_memory) {
  return uninitialized(at::empty_permuted(C10_AS_INTARRAYREF_SLOW(size), layout_of_dims, dtype,
                                          layout, at::Device(at::kMeta), pin_memory),
                       device_index_of(device));
}

// PyTorch's own takes xla for a device whose tensors have no strides.
at::Tensor unsplit_like(const at::Tensor& self, std::optional<at::ScalarType> dtype,
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

at::Tensor empty_like(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                      std::optional<at::Layout> layout, std::optional<at::Device> device,
                      std::optional<bool> pin_memory, std::optional<at::MemoryFormat> format) {
  const at::Tensor made = unsplit_like(self, dtype, layout, device, pin_memory, format);
  split_like(self, made);
  return made;
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
  lazy::Storage& storage = to.lazy_storage();
  const Value before = storage.has_value() ? storage.value() : Value{};
  write(to, std::move(value));
  // Graphs of torch.compile run first and are copied to what they update: a run that fails by then
  // must leave the old data to go back to.
  if (before) executor::note_replaced(storage, before);
  return self;
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& src, bool /*non_blocking*/) {
  TensorImpl* to = lazy::as_lazy(self);
  TensorImpl* from = lazy::as_lazy(src);
  if (to != nullptr && to == from) return self;
  if (to != nullptr) at::assert_no_internal_overlap(self);
  if (to != nullptr && from != nullptr) return copy_within(self, *to, src, *from);
  if (to != nullptr) {
    TXLA_CHECK(src.is_cpu(), "copy_: expected a source on cpu or xla, got ", src.device().str(),
               ". Move it to cpu first.");
    const at::Tensor host =
        src.resolve_conj().resolve_neg().to(self.scalar_type()).expand(self.sizes());
    Value value = executor::upload(host, to->device_index(), asked_sharding(*to));
    const lazy::GraphLock lock;
    write(*to, std::move(value));
    return self;
  }
  TXLA_CHECK(from != nullptr, "copy_: expected an xla tensor among ", self.device().str(), " and ",
             src.device().str(), ".");
  return self.copy_(fetch({src}, "a copy to the CPU")[0]);
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

std::vector<at::Tensor> to_cpu(at::TensorList tensors) {
  return fetch(tensors.vec(), "a copy to the CPU");
}

c10::Scalar local_scalar_dense(const at::Tensor& self) {
  static const debug::Counter counter("aten::_local_scalar_dense");
  counter.add();
  return fetch({self}, "a number that Python reads")[0].item();
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

const ops::Rules memory_rules([](ops::Registry& r) {
  r.add("aten::_to_copy", ops::rules::to_copy);
  r.one("aten::_to_copy").recorded_by_name = true;
  r.add("aten::copy", ops::rules::copy);
});

TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_like", TORCH_FN(empty_like));
  m.impl("empty_permuted", TORCH_FN(empty_permuted));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("new_empty_strided", TORCH_FN(new_empty_strided));
  m.impl("resize_", TORCH_FN(resize_));
  m.impl("copy_", TORCH_FN(copy_));
  m.impl("_to_copy", TORCH_FN(to_copy));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_to_cpu", TORCH_FN(to_cpu));
  m.impl("_local_scalar_dense", TORCH_FN(local_scalar_dense));
  m.impl("equal", TORCH_FN(equal));
  m.impl("is_set_to", TORCH_FN(is_set_to));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_unsafe_view", TORCH_FN(unsafe_view));
  // Programs cannot fail: what is asserted is computed and read.
  m.impl("_assert_async", TORCH_FN(at::native::_assert_async_cpu));
  m.impl("_assert_async.msg", TORCH_FN(at::native::_assert_async_msg_cpu));
  m.impl("_functional_assert_async.msg", TORCH_FN(at::native::_functional_assert_async_msg_cpu));
}

// A copy to xla of a CPU tensor comes under the CPU key.
TORCH_LIBRARY_IMPL(aten, CPU, m) { m.impl("_to_copy", TORCH_FN(to_copy)); }

// Functionalization tells xla what became of a value, which is nothing for a batch of vmap either.
TORCH_LIBRARY_IMPL(aten, FuncTorchBatched, m) {
  m.impl("_propagate_xla_data", TORCH_FN(at::native::_propagate_xla_data));
}

}  // namespace
}  // namespace torch_xla::dispatch
