// Operators whose result is as long as the data says: they fill the front of results that are as
// long as can be, and count. dispatch/composites/value_shapes.cpp reads the count and cuts.
#include <array>

#include "ops/common.h"
#include "ops/gather.h"
#include "ops/rules.h"
#include "ops/sort.h"

namespace torch_xla::ops {
namespace {

using hlo::DType;
using hlo::Value;
using hlo::Values;

Value flat(const Value& x) { return hlo::reshape(x, {x.type().elements()}); }

Value positions(hlo::Builder& b, int64_t n) { return hlo::iota(b, {DType::S64, {n}}, 0); }

Value last(const Value& x) {
  const int64_t n = x.dim(0);
  return hlo::reshape(hlo::slice_dim(x, 0, n - 1, n), {});
}

// Where the elements that the mask keeps go: the rank of each among them; out of range for others.
struct Ranks {
  Value of, count;

  explicit Ranks(const Value& mask) {
    const Value ends = running_sum(hlo::convert(mask, DType::S64), 0);
    of = hlo::select(mask, ends - 1, static_cast<double>(mask.dim(0)));
    count = last(ends);
  }
  Value place(const Value& x) const {
    return scatter_rows(hlo::zero(x.builder(), x.type()), 0, of, x, replace);
  }
};

// torch_xla::nonzero(self) -> (positions, count)
Values nonzero(Lowering& l) {
  const Value x = l.in(0);
  const hlo::Dims& dims = x.dims();
  const Ranks ranks(flat(cast(x, DType::Pred)));
  Value rest = ranks.place(positions(l.b, x.type().elements()));
  Values columns(dims.size());
  for (size_t d = dims.size(); d-- > 0;) {
    const Value size = hlo::like(rest, static_cast<double>(dims[d]));
    columns[d] = hlo::reshape(hlo::rem(rest, size), {rest.dim(0), 1});
    rest = rest / size;
  }
  return {hlo::concatenate(columns, 1), ranks.count};
}

// torch_xla::masked_select(self, mask) -> (values, count), of tensors of one shape.
Values masked_select(Lowering& l) {
  const Ranks ranks(flat(l.in(1)));
  return {ranks.place(flat(l.in(0))), ranks.count};
}

// Rows by their first element, among equal ones by the second, and so on: sorted by each column
// from the last to the first.
Sorted sorted_rows(const Value& rows, const Target& target) {
  hlo::Builder& b = rows.builder();
  const Value zero = hlo::scalar_int(b, 0, DType::S64);
  const Values init = {hlo::scalar_int(b, rows.dim(1) - 1, DType::S64), positions(b, rows.dim(0)),
                       rows};
  const Value order = hlo::while_loop(
      init, [&](std::span<const Value> s) { return hlo::greater_equal(s[0], 0); },
      [&](std::span<const Value> s) {
        const std::array<Value, 2> starts = {zero, s[0]};
        const Value column = flat(hlo::dynamic_slice(s[2], starts, {s[2].dim(0), 1}));
        const Sorted next = sorted(take_rows(column, 0, s[1]), 0, /*descending=*/false, target);
        return Values{s[0] - 1, take_rows(s[1], 0, next.indices), s[2]};
      })[1];
  return {take_rows(rows, 0, order), order};
}

// torch_xla::unique(self, rows, consecutive) -> (values, inverse, counts, count): of all elements,
// or of the rows of a matrix.
Values unique(Lowering& l) {
  const bool of_rows = l.flag(1), consecutive = l.flag(2);
  Value x = of_rows ? l.in(0) : flat(l.in(0));
  const int64_t n = x.dim(0);
  Value order;
  if (!consecutive) {
    const Sorted s =
        of_rows ? sorted_rows(x, l.target()) : sorted(x, 0, /*descending=*/false, l.target());
    x = s.values;
    order = s.indices;
  }
  const Value one = hlo::one(l.b, {DType::S64, {n}});
  Value differs = hlo::one(l.b, {DType::Pred, {1}});
  if (n > 1) {
    Value from_last = hlo::not_equal(hlo::slice_dim(x, 0, 1, n), hlo::slice_dim(x, 0, 0, n - 1));
    if (of_rows) from_last = reduce_max(from_last, std::array<int64_t, 1>{1});
    differs = hlo::concatenate(std::vector{differs, from_last}, 0);
  }
  const Ranks ranks(differs);
  const Value run = running_sum(hlo::convert(differs, DType::S64), 0) - 1;
  const Value zeros = hlo::zero(l.b, one.type());
  const Value inverse = order
                            ? scatter_rows(zeros, 0, order, run,
                                           [](const Value&, const Value& update) { return update; })
                            : run;
  return {ranks.place(x), hlo::reshape(inverse, l.out(1).dims),
          scatter_rows(zeros, 0, run, one, hlo::add), ranks.count};
}

}  // namespace

namespace rules {

const RuleFunction nonzero = ops::nonzero;
const RuleFunction masked_select = ops::masked_select;
const RuleFunction unique = ops::unique;

}  // namespace rules

}  // namespace torch_xla::ops
