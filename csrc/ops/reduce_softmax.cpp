// Softmax, log-softmax and their gradients: plain reductions that XLA fuses.
#include "ops/meta.h"
#include "ops/reduce.h"

namespace torch_xla::ops {
namespace {

using hlo::Value;
using hlo::Values;
using Dimensions = std::vector<int64_t>;

// A 0-dim tensor has nothing to reduce.
Dimensions one_dim(const Lowering& l, size_t arg, const Value& x) {
  const int64_t dim = wrap_dim(l.integer(arg), x.rank());
  return x.rank() == 0 ? Dimensions{} : Dimensions{dim};
}

Value spread_sum(const Value& x, const Dimensions& dims) {
  return spread(reduce_sum(x, dims), x.dims(), dims);
}

Value input(const Lowering& l, size_t arg) { return cast(l.in(arg), compute_dtype(l.out().dtype)); }

Values softmax(Lowering& l) {
  const Value x = input(l, 0);
  const Dimensions dims = one_dim(l, 1, x);
  const Value e = hlo::exp(x - spread(reduce_max(x, dims), x.dims(), dims));
  return result(l, e / spread_sum(e, dims));
}

// Rows that are -inf throughout give 0, not nan.
Values safe_softmax(Lowering& l) {
  const Value x = input(l, 0);
  const Dimensions dims = one_dim(l, 1, x);
  const Value top = reduce_max(x, dims);
  const Value masked = hlo::equal(top, hlo::lowest(l.b, top.type()));
  const Value e = hlo::exp(x - spread(top, x.dims(), dims));
  return result(l, hlo::select(spread(masked, x.dims(), dims), 0.0, e / spread_sum(e, dims)));
}

Values log_softmax(Lowering& l) {
  const Value x = input(l, 0);
  const Dimensions dims = one_dim(l, 1, x);
  const Value shifted = x - spread(reduce_max(x, dims), x.dims(), dims);
  const Value total = hlo::log(reduce_sum(hlo::exp(shifted), dims));
  return result(l, shifted - spread(total, x.dims(), dims));
}

// (grad, output, dim, input_dtype)
Values softmax_backward(Lowering& l) {
  const Value output = cast(l.in(1), compute_dtype(to_hlo(l.in_dtype(1))));
  const Value grad = cast(l.in(0), output.dtype());
  const Value weighted = grad * output;
  return result(l, weighted - output * spread_sum(weighted, one_dim(l, 2, output)));
}

Values log_softmax_backward(Lowering& l) {
  const Value output = cast(l.in(1), compute_dtype(to_hlo(l.in_dtype(1))));
  const Value grad = cast(l.in(0), output.dtype());
  return result(l, grad - hlo::exp(output) * spread_sum(grad, one_dim(l, 2, output)));
}

// A mask for the rows of each sample (type 0: [L, L]), for its keys (1: [B, L]), or for each
// element (2), over all of x: [B, H, L, L] where it is of the first two types.
Value mask_over(const Lowering& l, const Value& x, int64_t type) {
  const Value mask = cast(l.in(1), hlo::DType::Pred);
  hlo::Dims dims = mask.dims();
  if (type == 0) dims = {1, 1, dims[0], dims[1]};
  if (type == 1) dims = {dims[0], 1, 1, dims[1]};
  return hlo::broadcast_to(hlo::reshape(mask, dims), x.dims());
}

Dimensions dim_or_last(const Lowering& l, size_t arg, const Value& x) {
  if (l.has(arg)) return one_dim(l, arg, x);
  return x.rank() == 0 ? Dimensions{} : Dimensions{x.rank() - 1};
}

// (self, mask, dim, mask_type): masked elements give 0.
Values masked_softmax(Lowering& l) {
  const Value x = input(l, 0);
  const Dimensions dims = dim_or_last(l, 2, x);
  const Value masked = mask_over(l, x, l.has(3) ? l.integer(3) : 2);
  const Value seen = hlo::select(masked, hlo::lowest(l.b, x.type()), x);
  const Value top = spread(reduce_max(seen, dims), x.dims(), dims);
  const Value e = hlo::select(masked, 0.0, hlo::exp(seen - top));
  return result(l, hlo::select(masked, 0.0, e / spread_sum(e, dims)));
}

// (grad, output, mask, dim): the output is 0 where elements are masked.
Values masked_softmax_backward(Lowering& l) {
  const Value output = cast(l.in(1), compute_dtype(to_hlo(l.in_dtype(1))));
  const Value masked = cast(l.in(2), hlo::DType::Pred);
  const Value weighted = hlo::select(masked, 0.0, cast(l.in(0), output.dtype()) * output);
  return result(l, weighted - output * spread_sum(weighted, dim_or_last(l, 3, output)));
}

}  // namespace

// _safe_softmax is a composite recorded whole on purpose: one node for six.
const Rules reduce_softmax_rules([](Registry& r) {
  r.add("aten::_softmax", softmax);
  r.add("aten::_safe_softmax", safe_softmax);
  r.add("aten::_log_softmax", log_softmax);
  r.add("aten::_softmax_backward_data", softmax_backward);
  r.add("aten::_log_softmax_backward_data", log_softmax_backward);
  r.add("aten::_masked_softmax", masked_softmax);
  r.add("aten::_masked_softmax_backward", masked_softmax_backward);
  // PyTorch has no Meta kernels of these.
  for (const char* name : {"aten::_masked_softmax", "aten::_masked_softmax_backward"}) {
    r.all(name).meta = like_first;
  }
});

}  // namespace torch_xla::ops
