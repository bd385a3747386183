// Softmax, log-softmax and their gradients: plain reductions that XLA fuses.
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

}  // namespace

// _safe_softmax is a composite recorded whole on purpose: one node for six.
void register_softmax(Registry& r) {
  r.add("aten::_softmax", softmax);
  r.add("aten::_safe_softmax", safe_softmax);
  r.add("aten::_log_softmax", log_softmax);
  r.add("aten::_softmax_backward_data", softmax_backward);
  r.add("aten::_log_softmax_backward_data", log_softmax_backward);
}

}  // namespace torch_xla::ops
