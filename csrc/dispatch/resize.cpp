#include "dispatch/resize.h"

#include <algorithm>

#include <ATen/MemoryOverlap.h>

#include "dispatch/call.h"
#include "util/error.h"

namespace torch_xla::dispatch {

using lazy::Geometry;
using lazy::Value;

void check_can_cast(at::ScalarType result, at::ScalarType out) {
  TORCH_CHECK(c10::canCast(result, out), "result type ", result,
              " can't be cast to the desired output type ", out);
}

void prepare_out(const std::string& op, const at::Tensor& out, const Geometry& result) {
  check_can_cast(result.dtype, out.scalar_type());
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
  TXLA_CHECK(!impl->view().defined(), op,
             ": expected an output of the result's shape, got a view of another shape. "
             "Pass a tensor that owns its storage.");
  const Geometry* g = lazy::intern(out.scalar_type(), result.sizes, result.strides);
  impl->lazy_storage().reset(g, {});
  impl->assign(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(out.storage().unsafeGetStorageImpl()), g,
      0, {});
}

at::Tensor& write_out(const std::string& op, at::Tensor& out, const at::Tensor& result,
                      at::TensorList operands) {
  TORCH_CHECK(lazy::is_lazy(out), op, ": Expected out tensor on ", result.device(),
              ", but got it on ", out.device(), ".");
  for (const at::Tensor& operand : operands) at::assert_no_overlap(out, operand);
  prepare_out(op, out, *lazy::as_lazy(result)->geometry());
  return out.copy_(result);
}

void resize(lazy::TensorImpl& tensor, c10::IntArrayRef sizes) {
  const Geometry* from = tensor.geometry();
  if (c10::IntArrayRef(from->sizes) == sizes) return;
  const Geometry* to = lazy::intern_contiguous(from->dtype, sizes);
  const int device = tensor.device_index();
  lazy::Storage& storage = tensor.lazy_storage();
  auto storage_ptr =
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(&static_cast<c10::StorageImpl&>(storage));
  const Geometry& whole = storage.geometry();
  if (to->numel + tensor.storage_offset() > whole.numel || !storage.has_value()) {
    // The storage grows; old elements keep their places.
    const int64_t total = to->numel + tensor.storage_offset();
    Value value;
    if (storage.has_value()) {
      const int64_t kept = whole.numel;
      value = reshape(storage.value(), {kept}, device);
      value =
          call("aten::constant_pad_nd", device,
               {value, c10::IValue(std::vector<int64_t>{0, total - kept}), c10::IValue(int64_t{0})},
               lazy::intern_contiguous(from->dtype, {total}));
      if (tensor.storage_offset() == 0) value = reshape(value, sizes, device);
    }
    if (tensor.storage_offset() == 0) {
      storage.reset(to, value);
      tensor.assign(std::move(storage_ptr), to, 0, {});
      return;
    }
    storage.reset(lazy::intern_contiguous(from->dtype, {total}), value);
  }
  const at::Tensor base = at::Tensor(c10::make_intrusive<lazy::TensorImpl>(
      storage_ptr, &storage.geometry(), 0, c10::intrusive_ptr<lazy::View>()));
  const at::Tensor view = base.as_strided(to->sizes, to->strides, tensor.storage_offset());
  lazy::TensorImpl* impl = lazy::as_lazy(view);
  tensor.assign(std::move(storage_ptr), to, tensor.storage_offset(), impl->view());
}

}  // namespace torch_xla::dispatch
