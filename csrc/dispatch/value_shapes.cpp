// Operators whose result has a shape that only the data tells. They are recorded at their longest,
// the graph runs up to there, one number comes back, and what it counts is cut on the device.
#include <algorithm>

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <torch/library.h>

#include "dispatch/resize.h"
#include "lazy/tensor.h"

namespace torch_xla::dispatch {
namespace {

using at::Tensor;

template <class Signature>
auto own_operator(const char* name) {
  return c10::Dispatcher::singleton()
      .findSchemaOrThrow((std::string("torch_xla::") + name).c_str(), "")
      .typed<Signature>();
}

at::TensorOptions positions_like(const Tensor& t) { return t.options().dtype(at::kLong); }

// Its own memory: a view would keep the longest form.
Tensor front(const Tensor& t, int64_t count) { return t.narrow(0, 0, count).clone(); }

// The result as out=, with PyTorch's checks.
Tensor& write_out(const char* op, Tensor& out, const Tensor& result, at::TensorList operands) {
  TORCH_CHECK(lazy::is_lazy(out), op, ": Expected out tensor on ", result.device(),
              ", but got it on ", out.device(), ".");
  for (const Tensor& operand : operands) at::assert_no_overlap(out, operand);
  prepare_out(op, out, *lazy::as_lazy(result)->geometry());
  return out.copy_(result);
}

Tensor nonzero(const Tensor& self) {
  if (self.numel() == 0) return at::empty({0, self.dim()}, positions_like(self));
  if (self.dim() == 0) {
    return at::empty({self.item().toBool() ? 1 : 0, 0}, positions_like(self));
  }
  static const auto op = own_operator<std::tuple<Tensor, Tensor>(const Tensor&)>("nonzero");
  const auto [positions, count] = op.call(self);
  return front(positions, count.item<int64_t>());
}

Tensor& nonzero_out(const Tensor& self, Tensor& out) {
  TORCH_CHECK(out.scalar_type() == at::kLong,
              "nonzero: Expected out tensor to have scalar type Long but got scalar type",
              out.scalar_type());
  return write_out("nonzero", out, dispatch::nonzero(self), {self});
}

Tensor masked_select(const Tensor& self, const Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool,
              "masked_select: expected BoolTensor for mask, got a tensor of ", mask.scalar_type(),
              ".");
  TORCH_CHECK(lazy::is_lazy(self) && lazy::is_lazy(mask),
              "Expected all tensors to be on the same device, but found self on ", self.device(),
              " and mask on ", mask.device(), ".");
  const auto expanded = at::expand_outplace(self, mask);
  const Tensor& values = *std::get<0>(expanded);
  if (values.numel() == 0) return at::empty({0}, self.options());
  static const auto op =
      own_operator<std::tuple<Tensor, Tensor>(const Tensor&, const Tensor&)>("masked_select");
  const auto [selected, count] = op.call(values, *std::get<1>(expanded));
  return front(selected, count.item<int64_t>());
}

Tensor& masked_select_out(const Tensor& self, const Tensor& mask, Tensor& out) {
  TORCH_CHECK(out.scalar_type() == self.scalar_type(),
              "masked_select(): self and result must have the same scalar type");
  return write_out("masked_select", out, dispatch::masked_select(self, mask), {self, mask});
}

// Distinct elements, or rows of a matrix: (values, inverse, counts).
std::tuple<Tensor, Tensor, Tensor> distinct(const Tensor& self, bool rows, bool consecutive) {
  static const auto op =
      own_operator<std::tuple<Tensor, Tensor, Tensor, Tensor>(const Tensor&, bool, bool)>("unique");
  const auto [values, inverse, counts, found] = op.call(self, rows, consecutive);
  const auto count = found.item<int64_t>();
  return {front(values, count), inverse, front(counts, count)};
}

std::tuple<Tensor, Tensor, Tensor> unique(const Tensor& self, bool consecutive, bool with_inverse,
                                          bool with_counts) {
  const at::TensorOptions integers = positions_like(self);
  const Tensor none = at::empty({0}, integers);
  if (self.numel() == 0) {
    return {at::empty({0}, self.options()), with_inverse ? at::empty(self.sizes(), integers) : none,
            none};
  }
  const auto [values, inverse, counts] = distinct(self, /*rows=*/false, consecutive);
  return {values, with_inverse ? inverse : none, with_counts ? counts : none};
}

// Slices along a dimension, as rows. PyTorch gives all three results whether asked for or not.
std::tuple<Tensor, Tensor, Tensor> unique_slices(const Tensor& self, int64_t dim_arg,
                                                 bool consecutive) {
  const int64_t dim = c10::maybe_wrap_dim(dim_arg, self.dim(), /*wrap_scalar=*/false);
  const auto empty_dims = std::count(self.sizes().begin(), self.sizes().end(), 0);
  if (self.size(dim) == 0) {
    TORCH_CHECK(empty_dims == 1,
                "Number of zero sized dimensions is more than one, so unique cannot be applied");
    const Tensor none = at::empty({0}, positions_like(self));
    return {at::empty(self.sizes(), self.options()), none, none};
  }
  TORCH_CHECK(empty_dims == 0,
              "There are 0 sized dimensions, and they aren't selected, so unique cannot be "
              "applied");
  const Tensor slices = self.movedim(dim, 0);
  auto [rows, inverse, counts] =
      distinct(slices.reshape({slices.size(0), -1}), /*rows=*/true, consecutive);
  std::vector<int64_t> sizes = slices.sizes().vec();
  sizes[0] = rows.size(0);
  return {rows.reshape(sizes).movedim(0, dim), inverse, counts};
}

std::tuple<Tensor, Tensor, Tensor> unique_dim(const Tensor& self, int64_t dim, bool /*sorted*/,
                                              bool /*return_inverse*/, bool /*return_counts*/) {
  return unique_slices(self, dim, /*consecutive=*/false);
}

std::tuple<Tensor, Tensor, Tensor> unique_dim_consecutive(const Tensor& self, int64_t dim,
                                                          bool /*return_inverse*/,
                                                          bool /*return_counts*/) {
  return unique_slices(self, dim, /*consecutive=*/true);
}

// Always sorted, which `sorted=False` permits.
std::tuple<Tensor, Tensor, Tensor> unique2(const Tensor& self, bool, bool return_inverse,
                                           bool return_counts) {
  return unique(self, false, return_inverse, return_counts);
}

std::tuple<Tensor, Tensor> unique1(const Tensor& self, bool, bool return_inverse) {
  auto [values, inverse, counts] = unique(self, false, return_inverse, false);
  return {values, inverse};
}

std::tuple<Tensor, Tensor, Tensor> unique_consecutive(const Tensor& self, bool return_inverse,
                                                      bool return_counts,
                                                      std::optional<int64_t> dim) {
  return dim ? unique_slices(self, *dim, true) : unique(self, true, return_inverse, return_counts);
}

Tensor bincount(const Tensor& self, const std::optional<Tensor>& weights, int64_t minlength) {
  TORCH_CHECK(minlength >= 0, "minlength should be >= 0");
  const bool weighted = weights && weights->defined();
  const bool counted = self.dim() == 1 && at::isIntegralType(self.scalar_type(), false);
  TORCH_CHECK(counted, "bincount only supports 1-d non-negative integral inputs.");
  TORCH_CHECK(!weighted || weights->sizes() == self.sizes(),
              "weights should be 1-d and have the same length as input");
  const at::TensorOptions options = !weighted ? positions_like(self)
                                    : weights->scalar_type() == at::kFloat
                                        ? weights->options()
                                        : weights->options().dtype(at::kDouble);
  if (self.numel() == 0) return at::zeros({minlength}, positions_like(self));
  const Tensor ends = at::stack({self.min(), self.max()}).to(at::kLong).cpu();
  const int64_t least = ends[0].item<int64_t>(), greatest = ends[1].item<int64_t>();
  TORCH_CHECK(least >= 0, "bincount only supports 1-d non-negative integral inputs.");
  const Tensor added = weighted ? weights->to(options.dtype()) : at::ones(self.sizes(), options);
  return at::zeros({std::max(greatest + 1, minlength)}, options)
      .index_add(0, self.to(at::kLong), added);
}

Tensor repeat_interleave(const Tensor& repeats, std::optional<int64_t> output_size) {
  TORCH_CHECK(repeats.dim() == 1, "repeat_interleave only accept 1D vector as repeat");
  if (!output_size) {
    if (repeats.numel() == 0) return at::empty_like(repeats);
    const Tensor ends = at::stack({repeats.min().to(at::kLong), repeats.sum()}).cpu();
    TORCH_CHECK(ends[0].item<int64_t>() >= 0, "repeats can not be negative");
    output_size = ends[1].item<int64_t>();
  }
  static const auto op = own_operator<Tensor(const Tensor&, int64_t)>("runs");
  return op.call(repeats, *output_size);
}

// Class values are not read but to find out how many there are: those out of range give zeros.
Tensor one_hot(const Tensor& self, int64_t num_classes) {
  TORCH_CHECK(self.scalar_type() == at::kLong,
              "one_hot is only applicable to index tensor of type LongTensor.");
  if (num_classes < 0) {
    TORCH_CHECK(num_classes == -1, "one_hot: expected num_classes >= 0, or -1, got ", num_classes);
    TORCH_CHECK(self.numel() != 0, "Can not infer total number of classes from empty tensor.");
    const Tensor ends = at::stack({self.min(), self.max()}).cpu();
    TORCH_CHECK(ends[0].item<int64_t>() >= 0, "Class values must be non-negative.");
    num_classes = ends[1].item<int64_t>() + 1;
  }
  TORCH_CHECK(num_classes > 0 || self.numel() == 0,
              "Class values must be smaller than num_classes.");
  static const auto op = own_operator<Tensor(const Tensor&, int64_t)>("one_hot");
  return op.call(self, num_classes);
}

// --- shapes of the longest forms -----------------------------------------------------------

std::tuple<Tensor, Tensor> nonzero_meta(const Tensor& self) {
  return {at::empty({self.numel(), self.dim()}, positions_like(self)),
          at::empty({}, positions_like(self))};
}

std::tuple<Tensor, Tensor> masked_select_meta(const Tensor& self, const Tensor&) {
  return {at::empty({self.numel()}, self.options()), at::empty({}, positions_like(self))};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> unique_meta(const Tensor& self, bool rows, bool) {
  const at::TensorOptions integers = positions_like(self);
  const int64_t most = rows ? self.size(0) : self.numel();
  const Tensor counts = at::empty({most}, integers);
  return {rows ? at::empty(self.sizes(), self.options()) : at::empty({most}, self.options()),
          rows ? counts : at::empty(self.sizes(), integers), counts, at::empty({}, integers)};
}

Tensor runs_meta(const Tensor& repeats, int64_t size) {
  return at::empty({size}, repeats.options());
}

Tensor one_hot_meta(const Tensor& self, int64_t num_classes) {
  std::vector<int64_t> sizes = self.sizes().vec();
  sizes.push_back(num_classes);
  return at::empty(sizes, self.options());
}

TORCH_LIBRARY_FRAGMENT(torch_xla, m) {
  m.def("one_hot(Tensor self, int num_classes) -> Tensor");
  m.def("nonzero(Tensor self) -> (Tensor, Tensor)");
  m.def("masked_select(Tensor self, Tensor mask) -> (Tensor, Tensor)");
  m.def("unique(Tensor self, bool rows, bool consecutive) -> (Tensor, Tensor, Tensor, Tensor)");
  m.def("runs(Tensor repeats, int size) -> Tensor");
}

TORCH_LIBRARY_IMPL(torch_xla, Meta, m) {
  m.impl("nonzero", TORCH_FN(nonzero_meta));
  m.impl("masked_select", TORCH_FN(masked_select_meta));
  m.impl("unique", TORCH_FN(unique_meta));
  m.impl("runs", TORCH_FN(runs_meta));
  m.impl("one_hot", TORCH_FN(one_hot_meta));
}

TORCH_LIBRARY_IMPL(aten, XLA, m) {
  m.impl("nonzero", TORCH_FN(nonzero));
  m.impl("nonzero.out", TORCH_FN(nonzero_out));
  m.impl("masked_select", TORCH_FN(masked_select));
  m.impl("masked_select.out", TORCH_FN(masked_select_out));
  m.impl("_unique", TORCH_FN(unique1));
  m.impl("_unique2", TORCH_FN(unique2));
  m.impl("unique_dim", TORCH_FN(unique_dim));
  m.impl("unique_dim_consecutive", TORCH_FN(unique_dim_consecutive));
  m.impl("unique_consecutive", TORCH_FN(unique_consecutive));
  m.impl("bincount", TORCH_FN(bincount));
  m.impl("repeat_interleave.Tensor", TORCH_FN(repeat_interleave));
  m.impl("one_hot", TORCH_FN(one_hot));
}

}  // namespace
}  // namespace torch_xla::dispatch
