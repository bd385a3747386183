// gather and the scatter family: one position for each element, along one dimension.
#include <string>

#include "lazy/operator.h"
#include "ops/common.h"
#include "ops/gather.h"
#include "ops/index.h"
#include "ops/lowering.h"
#include "ops/rearrange.h"
#include "ops/value_checks.h"

namespace torch_xla::ops {
namespace {

using hlo::Dims;
using hlo::DType;
using hlo::Value;
using hlo::Values;

Values gather(Lowering& l) {
  const Value x = at_least_1d(l.in(0));
  if (l.out().elements() == 0) return {hlo::zero(l.b, l.out())};
  const Value y = take_along(x, wrap_dim(l.integer(1), x.rank()), at_least_1d(l.in(2)), l.target());
  return {hlo::reshape(y, l.out().dims)};
}

// Arguments (self, dim, index, src or value) of the family.
struct Scatter {
  Value x, index;
  int64_t dim;
  const Target& target;

  explicit Scatter(const Lowering& l)
      : x(at_least_1d(l.in(0))),
        index(at_least_1d(l.in(2))),
        dim(wrap_dim(l.integer(1), x.rank())),
        target(l.target()) {}

  // The part of a tensor that is written: src may be larger than index.
  Value source(const Lowering& l, size_t arg) const {
    const Value src = at_least_1d(cast(l.in(arg), x.dtype()));
    return hlo::slice(src, Dims(src.rank(), 0), index.dims(), Dims(src.rank(), 1));
  }
  Value filled(const Lowering& l, size_t arg) const {
    return hlo::broadcast_to(l.number(arg, x.dtype()), index.dims());
  }

  Value assign(const Value& updates) const {
    return scatter_along(x, dim, index, updates, replace, target);
  }

  // Narrow floats are combined in f32 and rounded once.
  Value reduce(const Value& updates, Reduction reduction, bool include_self) const {
    hlo::Builder& b = x.builder();
    const DType wide = compute_dtype(x.dtype());
    Value y = hlo::convert(x, wide);
    Value counts;
    if (reduction == Reduction::Mean || !include_self) {
      const Value none = hlo::zero(b, x.type().with(DType::S64));
      const Value ones = hlo::one(b, index.type().with(DType::S64));
      counts = scatter_along(none, dim, index, ones, hlo::add, target);
    }
    if (!include_self) {
      y = hlo::select(hlo::greater(counts, 0), reduction_identity(b, reduction, y.type()), y);
    }
    y = scatter_along(y, dim, index, hlo::convert(updates, wide), combine_of(reduction), target);
    if (reduction == Reduction::Mean) {
      const Value divisor =
          include_self ? counts + 1 : hlo::max(counts, hlo::one(b, counts.type()));
      y = divide_for_mean(y, hlo::convert(divisor, wide));
    }
    return hlo::convert(y, x.dtype());
  }
};

Values done(Lowering& l, const Value& y) { return {hlo::reshape(y, l.out().dims)}; }

Values scatter_src(Lowering& l) {
  const Scatter s(l);
  if (s.index.type().elements() == 0) return {l.in(0)};
  return done(l, s.assign(s.source(l, 3)));
}

Values scatter_value(Lowering& l) {
  const Scatter s(l);
  return done(l, s.assign(s.filled(l, 3)));
}

Values scatter_add(Lowering& l) {
  const Scatter s(l);
  if (s.index.type().elements() == 0) return {l.in(0)};
  return done(l, s.reduce(s.source(l, 3), Reduction::Sum, true));
}

Values scatter_reduce(Lowering& l) {  // scatter.reduce and scatter_reduce.two
  const Scatter s(l);
  if (s.index.type().elements() == 0) return {l.in(0)};
  const bool include_self = l.signature().arguments.size() < 6 || l.flag(5);
  return done(
      l, s.reduce(s.source(l, 3), reduction_of(l.text(4), l.signature().op->name), include_self));
}

Values scatter_value_reduce(Lowering& l) {
  const Scatter s(l);
  return done(l, s.reduce(s.filled(l, 3), reduction_of(l.text(4), l.signature().op->name), true));
}

}  // namespace

const Rules index_scatter_rules([](Registry& r) {
  r.add("aten::gather", gather);
  r.add("aten::scatter.src", scatter_src);
  r.add("aten::scatter.value", scatter_value);
  r.add("aten::scatter.reduce", scatter_reduce);
  r.add("aten::scatter.value_reduce", scatter_value_reduce);
  r.add("aten::scatter_add", scatter_add);
  r.add("aten::scatter_reduce.two", scatter_reduce);

  r.all("aten::gather") = {.suspects_values = along_dim<>, .reads_elsewhere = true};
  r.all("aten::scatter") = {.suspects_values = along_dim<>,
                            .narrow_floats = NarrowFloats::Exact,
                            .reads_elsewhere = true};
  r.all("aten::scatter_add") = {.suspects_values = along_dim<>, .reads_elsewhere = true};
  r.all("aten::scatter_reduce") = {.suspects_values = along_dim<>, .reads_elsewhere = true};
});

}  // namespace torch_xla::ops
