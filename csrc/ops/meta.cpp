#include "ops/meta.h"

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorIterator.h>
#include <ATen/WrapDimUtils.h>
#include <ATen/ops/empty.h>

namespace torch_xla::ops {

at::Tensor meta_tensor(const lazy::Geometry& geometry, bool wrapped_number) {
  at::Tensor t = at::detail::empty_strided_meta(geometry.sizes, geometry.strides, geometry.dtype);
  if (wrapped_number) t.unsafeGetTensorImpl()->set_wrapped_number(true);
  return t;
}

at::Tensor meta_of_sizes(at::ScalarType dtype, const std::vector<int64_t>& sizes) {
  return meta_tensor(*lazy::intern_contiguous(dtype, sizes), false);
}

at::Tensor meta_of_columns(const at::Tensor& like) {
  return at::empty(like.mT().sizes(), like.options()).mT();
}

at::Tensor meta_of_elementwise(std::initializer_list<at::Tensor> operands, at::ScalarType dtype) {
  at::TensorIteratorConfig config;
  config.check_all_same_dtype(false).declare_static_dtype_and_device(dtype, at::kMeta);
  config.add_owned_output(at::Tensor());
  for (const at::Tensor& operand : operands) config.add_owned_const_input(operand);
  return config.build().output();
}

void floats_like_first(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  if (!x.is_floating_point()) return call.pytorch();
  call.results({meta_of_elementwise({x}, x.scalar_type())});
}

void parts_like_first(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  call.results({meta_of_elementwise({x}, c10::toRealValueType(x.scalar_type()))});
}

void floats_like_pair(MetaCall& call) {
  const at::Tensor x = call.tensor(0), y = call.tensor(1);
  if (!x.is_floating_point() || x.scalar_type() != y.scalar_type()) return call.pytorch();
  call.results({meta_of_elementwise({x, y}, x.scalar_type())});
}

void bools_like_first(MetaCall& call) {
  call.results({meta_of_elementwise({call.tensor(0)}, at::kBool)});
}

void like_first(MetaCall& call) {
  const at::Tensor x = call.tensor(0);
  call.results({meta_of_sizes(x, x.sizes().vec())});
}

void like_second(MetaCall& call) {
  const at::Tensor x = call.tensor(1);
  call.results({meta_of_sizes(x, x.sizes().vec())});
}

void value_and_position(MetaCall& call, size_t dim) {
  const at::Tensor x = call.tensor(0);
  const int64_t along = at::maybe_wrap_dim(call[dim].toInt(), x.dim());
  std::vector<int64_t> sizes = x.sizes().vec();
  const bool ordered = !x.is_complex() && x.scalar_type() != at::kBool;
  if (!ordered || (x.dim() != 0 && sizes[along] == 0)) return call.pytorch();
  if (x.dim() != 0) {
    sizes[along] = 1;
    if (!call[dim + 1].toBool()) sizes.erase(sizes.begin() + along);
  }
  call.results({meta_of_sizes(x, sizes), meta_of_sizes(at::kLong, sizes)});
}

namespace {

class AnyOrder {
 public:
  AnyOrder() : was_(at::globalContext().deterministicAlgorithms()) {
    if (was_) set(false);
  }
  ~AnyOrder() {
    if (was_) set(true);
  }
  AnyOrder(const AnyOrder&) = delete;
  AnyOrder& operator=(const AnyOrder&) = delete;

 private:
  static void set(bool deterministic) {
    at::Context& context = at::globalContext();
    context.setDeterministicAlgorithms(deterministic, context.deterministicAlgorithmsWarnOnly());
  }
  const bool was_;
};

}  // namespace

void in_any_order(MetaCall& call) {
  const AnyOrder any_order;
  call.pytorch();
}

void dims_of_a_bitset(const Arguments& a) {
  TORCH_CHECK(a.tensor(0).dim() <= 64, "only tensors with up to 64 dims are supported");
}

void check_can_cast(at::ScalarType result, at::ScalarType out) {
  TORCH_CHECK(c10::canCast(result, out), "result type ", result,
              " can't be cast to the desired output type ", out);
}

void check_window(const lazy::Geometry& window, int64_t offset, size_t storage_bytes) {
  const size_t itemsize = c10::elementSize(window.dtype);
  const size_t needed =
      window.numel == 0 ? 0 : static_cast<size_t>(offset + window.storage_elements()) * itemsize;
  TORCH_CHECK(needed <= storage_bytes, "setStorage: sizes ", c10::IntArrayRef(window.sizes),
              ", strides ", c10::IntArrayRef(window.strides), ", storage offset ", offset,
              ", and itemsize ", itemsize, " requiring a storage size of ", needed,
              " are out of bounds for storage of size ", storage_bytes);
}

}  // namespace torch_xla::ops
