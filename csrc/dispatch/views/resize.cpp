#include "dispatch/views/resize.h"

#include <algorithm>

#include <ATen/MemoryOverlap.h>

#include "dispatch/calls/call.h"
#include "dispatch/calls/computed_views.h"
#include "dispatch/views/view_kernel.h"
#include "ops/meta.h"
#include "util/error.h"

namespace torch_xla::dispatch {

using lazy::Geometry;
using lazy::Value;

namespace {

c10::intrusive_ptr<c10::StorageImpl> pointer_to(lazy::Storage& storage) {
  return c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&storage);
}

// Makes room for `needed` elements. The storage is row-major then: in the shape of `to`, if that
// fills it, else flat.
void grow(lazy::Storage& storage, const Geometry* to, int64_t needed) {
  const Geometry& from = storage.geometry();
  TXLA_CHECK_KIND(util::ErrorKind::NotImplemented, from.dtype == to->dtype,
                  "resize_: expected memory of the same dtype to grow, got a view of dtype ",
                  c10::toString(to->dtype), " over ", c10::toString(from.dtype),
                  ". Clone the view first.");
  const Geometry* flat = lazy::intern_contiguous(to->dtype, {needed});
  const Geometry* grown = to->contiguous && to->numel == needed ? to : flat;
  if (!storage.has_value()) {
    storage.reset(grown, {});
    return;
  }
  const auto kept = static_cast<int64_t>(storage.nbytes() / c10::elementSize(to->dtype));
  const Value value = read_over(storage, *lazy::intern_contiguous(to->dtype, {kept}));
  const Value padded = call(
      "aten::constant_pad_nd", storage.device_index(),
      {value, c10::IValue(std::vector<int64_t>{0, needed - kept}), c10::IValue(int64_t{0})}, flat);
  storage.reset(grown, reshape(padded, grown->sizes, storage.device_index()));
}

}  // namespace

void prepare_out(const std::string& op, const at::Tensor& out, const Geometry& result) {
  ops::check_can_cast(result.dtype, out.scalar_type());
  at::assert_no_internal_overlap(out);
  if (out.sizes() == c10::IntArrayRef(result.sizes)) return;
  if (out.numel() != 0) {
    TORCH_WARN(
        "An output with one or more elements was resized since it had shape ", out.sizes(),
        ", which does not match the required output shape ", c10::IntArrayRef(result.sizes),
        ". This behavior is deprecated, and in a future PyTorch release outputs will not be "
        "resized unless they have zero elements. You can explicitly reuse an out tensor t by "
        "resizing it, inplace, to zero elements with t.resize_(0).");
  }
  lazy::TensorImpl* impl = lazy::as_lazy(out);
  TXLA_CHECK(impl != nullptr, op, ": expected an xla output.");
  const Geometry* to = lazy::intern(out.scalar_type(), result.sizes, result.strides);
  lazy::Storage& storage = impl->lazy_storage();
  if (out.storage().use_count() == 1 && !impl->view().defined()) {
    // Nobody else sees the memory, and all of it is about to be overwritten.
    storage.reset(to, {});
    impl->assign(pointer_to(storage), to, 0, {});
    return;
  }
  resize(*impl, to);
}

at::Tensor& write_out(const std::string& op, at::Tensor& out, const at::Tensor& result,
                      at::TensorList operands) {
  TORCH_CHECK(lazy::is_lazy(out), op, ": Expected out tensor on ", result.device(),
              ", but got it on ", out.device(), ".");
  for (const at::Tensor& operand : operands) at::assert_no_overlap(out, operand);
  prepare_out(op, out, *lazy::as_lazy(result)->geometry());
  return out.copy_(result);
}

void resize(lazy::TensorImpl& tensor, const Geometry* to) {
  if (tensor.geometry() == to) return;
  lazy::Storage& storage = tensor.lazy_storage();
  const int64_t offset = tensor.storage_offset();
  const int64_t needed = to->numel == 0 ? 0 : offset + to->storage_elements();
  if (static_cast<size_t>(needed) * c10::elementSize(to->dtype) > storage.nbytes()) {
    grow(storage, to, needed);
  }
  const Computation computation = computation_of(tensor);
  if (&storage.geometry() == to && offset == 0 && computation.is_nothing()) {
    tensor.assign(pointer_to(storage), to, 0, {});
    return;
  }
  const at::Tensor shown = computed(window(storage, to, offset), computation);
  tensor.assign(pointer_to(storage), to, offset, lazy::as_lazy(shown)->view());
}

void resize_storage(lazy::Storage& storage, size_t bytes) {
  if (bytes == storage.nbytes()) return;
  const Geometry& from = storage.geometry();
  const size_t whole = static_cast<size_t>(from.storage_elements()) * c10::elementSize(from.dtype);
  if (bytes == 0 || (storage.nbytes() == 0 && bytes == whole)) {
    storage.reset(&from, {});
    storage.set_nbytes(bytes);
    return;
  }
  const size_t size = c10::elementSize(from.dtype);
  TXLA_CHECK_KIND(util::ErrorKind::Value, bytes % size == 0,
                  "UntypedStorage.resize_: expected whole elements of ", c10::toString(from.dtype),
                  ", got ", bytes, " bytes.");
  const auto count = static_cast<int64_t>(bytes / size);
  const auto kept = static_cast<int64_t>(std::min(bytes, storage.nbytes()) / size);
  const Geometry* to = lazy::intern_contiguous(from.dtype, {count});
  Value value;
  if (storage.has_value() && kept != 0) {
    value = call("aten::constant_pad_nd", storage.device_index(),
                 {read_over(storage, *lazy::intern_contiguous(from.dtype, {kept})),
                  c10::IValue(std::vector<int64_t>{0, count - kept}), c10::IValue(int64_t{0})},
                 to);
  }
  storage.reset(to, std::move(value));
}

Value read_over(lazy::Storage& storage, const Geometry& geometry) {
  return lazy::as_lazy(window(storage, &geometry, 0))->read();
}

void write_over(lazy::Storage& storage, const Geometry& geometry, const Value& value) {
  write(*lazy::as_lazy(window(storage, &geometry, 0)), value);
}

}  // namespace torch_xla::dispatch
