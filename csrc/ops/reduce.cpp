#include "ops/reduce.h"

#include <limits>

#include "ops/meta.h"
#include "ops/rules.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;
using Dimensions = std::vector<int64_t>;

// Where a rule finds its dimensions: an argument's position, or all of them.
constexpr int kAll = -1;

template <int arg>
Dimensions dimensions(const Lowering& l, const Value& x) {
  return arg == kAll ? all_dims(x.rank()) : dims_or_all(l, arg, x.rank());
}

// Sums of narrow floats accumulate in f32; the result's dtype rules (bool and integers: int64).
Value summand(const Lowering& l) { return cast(l.in(0), compute_dtype(l.out().dtype)); }

// --- sums and products -------------------------------------------------------------------------

template <int dims_arg>
Values sum(Lowering& l) {
  const Value x = summand(l);
  return {reduced(l, reduce_sum(x, dimensions<dims_arg>(l, x)))};
}

template <int dims_arg>
Values nansum(Lowering& l) {
  Value x = summand(l);
  if (hlo::is_float(x.dtype()) || hlo::is_complex(x.dtype())) {
    x = hlo::select(hlo::is_nan(x), 0.0, x);
  }
  return {reduced(l, reduce_sum(x, dimensions<dims_arg>(l, x)))};
}

template <int dims_arg>
Values mean(Lowering& l) {
  const Value x = summand(l);
  const Dimensions dims = dimensions<dims_arg>(l, x);
  return {reduced(l, reduce_sum(x, dims) / static_cast<double>(elements_along(x, dims)))};
}

template <int dims_arg>
Values prod(Lowering& l) {
  const Value x = summand(l);
  const Dimensions dims = dimensions<dims_arg>(l, x);
  if (dims.empty()) return {reduced(l, x)};
  return {reduced(l, hlo::reduce(x, hlo::scalar(l.b, 1, x.dtype()), dims, hlo::mul))};
}

template <int dims_arg>
Values count_nonzero(Lowering& l) {
  const Value x = cast(cast(l.in(0), DType::Pred), DType::S64);
  return {reduced(l, reduce_sum(x, dimensions<dims_arg>(l, x)))};
}

// --- logic -------------------------------------------------------------------------------------

// An empty list of dimensions reduces nothing here, unlike in sums.
template <int dims_arg>
Dimensions logic_dimensions(const Lowering& l, const Value& x) {
  if (dims_arg != kAll && l.has(dims_arg) && l.ints(dims_arg).empty()) return {};
  return dimensions<dims_arg>(l, x);
}

template <int dims_arg>
Values all(Lowering& l) {
  const Value x = cast(l.in(0), DType::Pred);
  const Dimensions dims = logic_dimensions<dims_arg>(l, x);
  return {reduced(l, reduce_min(x, dims))};
}
template <int dims_arg>
Values any(Lowering& l) {
  const Value x = cast(l.in(0), DType::Pred);
  const Dimensions dims = logic_dimensions<dims_arg>(l, x);
  return {reduced(l, reduce_max(x, dims))};
}

// --- extremes ----------------------------------------------------------------------------------

enum class Extreme { Max, Min };

template <Extreme which>
Value extreme(const Value& x, const Dimensions& dims) {
  return which == Extreme::Max ? reduce_max(x, dims) : reduce_min(x, dims);
}

// The first position of the extreme (or of nan, which wins). Two plain reductions: they run as
// vector code where one reduction of pairs would not.
Value first_position(const Value& x, const Value& found, int64_t dim) {
  hlo::Builder& b = x.builder();
  const DType dtype = x.dim(dim) <= std::numeric_limits<int32_t>::max() ? DType::S32 : DType::S64;
  const Dimensions dims = {dim};
  Value hit = hlo::equal(x, spread(found, x.dims(), dims));
  if (hlo::is_float(x.dtype())) hit = hit | hlo::is_nan(x);
  const hlo::Type type = x.type().with(dtype);
  const Value position =
      hlo::select(hit, hlo::iota(b, type, dim), hlo::splat_int(b, x.dim(dim), type));
  return reduce_min(position, dims);
}

template <Extreme which, int dims_arg>
Values extremes(Lowering& l) {
  const Value x = l.in(0);
  return {reduced(l, extreme<which>(x, dimensions<dims_arg>(l, x)))};
}

template <Extreme which>
Values extreme_along_dim(Lowering& l) {
  const Value x = l.in(0);
  if (x.rank() == 0) return {reduced(l, x, 0), hlo::zero(l.b, l.out(1))};
  const int64_t dim = wrap_dim(l.integer(1), x.rank());
  const Value found = extreme<which>(x, {dim});
  return {reduced(l, found, 0), reduced(l, first_position(x, found, dim), 1)};
}

template <Extreme which>
Values position_of_extreme(Lowering& l) {
  Value x = l.in(0);
  int64_t dim = 0;
  if (l.has(1)) {
    dim = wrap_dim(l.integer(1), x.rank());
  } else {
    x = hlo::reshape(x, {x.type().elements()});
  }
  if (x.rank() == 0) return {hlo::zero(l.b, l.out())};
  return {reduced(l, first_position(x, extreme<which>(x, {dim}), dim))};
}

template <int dims_arg>
Values aminmax(Lowering& l) {
  const Value x = l.in(0);
  const Dimensions dims = dimensions<dims_arg>(l, x);
  return {reduced(l, reduce_min(x, dims), 0), reduced(l, reduce_max(x, dims), 1)};
}

}  // namespace

// Composite operators recorded whole on purpose: sum, mean, all.dims, any.dims, count_nonzero.
namespace {

// (self, dim, ..)
void check_aminmax(const Arguments& a) {
  const at::Tensor self = a.tensor(0);
  TORCH_CHECK(self.dim() != 0 || a[1].isNone() || !self.is_complex(),
              "aminmax not implemented for ", self.scalar_type());
}

}  // namespace

namespace rules {

const RuleFunction prod_of_all = ops::prod<kAll>;
const RuleFunction prod_along = ops::prod<1>;
const RuleFunction max_of_all = ops::extremes<Extreme::Max, kAll>;
const RuleFunction min_of_all = ops::extremes<Extreme::Min, kAll>;
const RuleFunction max_along = ops::extreme_along_dim<Extreme::Max>;
const RuleFunction min_along = ops::extreme_along_dim<Extreme::Min>;

}  // namespace rules

const Rules reduce_rules([](Registry& r) {
  r.add("aten::sum", sum<kAll>);
  r.add("aten::sum.dim_IntList", sum<1>);
  r.add("aten::nansum", nansum<1>);
  r.add("aten::mean", mean<kAll>);
  r.add("aten::mean.dim", mean<1>);
  r.add("aten::count_nonzero", count_nonzero<1>);
  r.add("aten::count_nonzero.dim_IntList", count_nonzero<1>);

  r.add("aten::all", all<kAll>);
  r.add("aten::all.dim", all<1>);
  r.add("aten::all.dims", all<1>);
  r.add("aten::any", any<kAll>);
  r.add("aten::any.dim", any<1>);
  r.add("aten::any.dims", any<1>);

  r.add("aten::amax", extremes<Extreme::Max, 1>);
  r.add("aten::amin", extremes<Extreme::Min, 1>);
  r.add("aten::argmax", position_of_extreme<Extreme::Max>);
  r.add("aten::argmin", position_of_extreme<Extreme::Min>);
  r.add("aten::aminmax", aminmax<1>);

  r.all("aten::nansum").checks_call = dims_of_a_bitset;
  r.all("aten::aminmax").checks_call = check_aminmax;
  r.one("aten::sum.dim_IntList").dtype_of_out = true;
});

}  // namespace torch_xla::ops
